// OpenAI's or Anthropic's own npm client through the router: `node clients.mjs BASE_URL openai|anthropic`.
// Prints one JSON object: what was done, and how often; a failure ends it with its stack.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`); // the packages are installed in the working folder
const { default: OpenAI } = await import(require.resolve("openai"));
const { default: Anthropic } = await import(require.resolve("@anthropic-ai/sdk"));

const [base, whose] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: `${base}/v1`, apiKey: "k", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: base, apiKey: "k", maxRetries: 0 });
const messages = [{ role: "user", content: "Say hello." }];
const done = [];

async function step(name, action) {
  if (!name.startsWith(`${whose}: `)) return;
  await action();
  done.push(name.slice(whose.length + 2));
}

async function refused(promise, status) {
  await assert.rejects(promise, (error) => {
    assert.equal(error.status, status);
    assert.ok(error.requestID ?? error.headers?.get("x-request-id"), "no request id");
    return true;
  });
}

await step("openai: models", async () => {
  const listed = [];
  for await (const model of openai.models.list()) listed.push(model.id);
  assert.ok(listed.includes("gpt-4o"), listed.join());
});
await step("openai: chat", async () => {
  const { data, request_id } = await openai.chat.completions.create({ model: "gpt-4o", messages }).withResponse();
  assert.ok(data.choices[0].message.content);
  assert.ok(request_id);
});
await step("openai: chat, streamed", async () => {
  const stream = await openai.chat.completions.create({
    model: "gpt-4o", messages, stream: true, stream_options: { include_usage: true },
  });
  let text = "", usage, finish;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    finish ??= chunk.choices[0]?.finish_reason;
    usage ??= chunk.usage;
  }
  assert.ok(text);
  assert.equal(finish, "stop");
  assert.ok(usage.completion_tokens > 0);
});
await step("openai: chat with a tool", async () => {
  const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
  const answer = await openai.chat.completions.create({ model: "gpt-4o", messages, tools });
  assert.equal(answer.choices[0].message.tool_calls[0].function.name, "get_weather");
});
await step("openai: embeddings", async () => {
  const answer = await openai.embeddings.create({ model: "gpt-4o", input: "hello" });
  assert.ok(answer.data[0].embedding.length > 0);
});
await step("openai: a stream that the client leaves", async () => {
  const stream = await openai.chat.completions.create({ model: "gpt-4o", messages, stream: true });
  for await (const _ of stream) break;
});
await step("openai: an unknown model is a NotFoundError", () =>
  refused(openai.chat.completions.create({ model: "nobody-has-this", messages }), 404));
await step("anthropic: messages", async () => {
  const answer = await anthropic.messages.create({ model: "messages-model", max_tokens: 64, messages });
  assert.ok(answer.content[0].text);
});
await step("anthropic: messages, streamed", async () => {
  const final = await anthropic.messages.stream({ model: "messages-model", max_tokens: 64, messages }).finalMessage();
  assert.ok(final.content[0].text);
  assert.equal(final.stop_reason, "end_turn");
});
await step("anthropic: an unknown model is a NotFoundError", () =>
  refused(anthropic.messages.create({ model: "nobody-has-this", max_tokens: 64, messages }), 404));
console.log(JSON.stringify({ done }));
