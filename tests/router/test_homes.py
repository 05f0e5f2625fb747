"""Prompts that begin alike meet at one engine while it is not busy, where such prompts come back."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from evenload.router.beginnings import Beginnings
from evenload.router.fake_wire import error
from evenload.router.fakes import post
from evenload.router.homes import REPEATED_MIN, SEEN_MAX, Homes
from evenload.router.prefix_key import prefix_key
from evenload.router.reload import adopt
from evenload.routing.affinity import home_of
from evenload.routing.predictive import Predictive
from evenload.schemas import Decision, FirstToken, InstanceState, Membership, encode
from evenload.scoring.prediction import work_of
from evenload.settings import Settings
from evenload.settings.problems import SettingsError
from tests.router.stage import GOOD, Fleet, fleet, stage, until
from tests.routing.views import view

HASHES = Beginnings(b"key")
VIEWS = [view(name) for name in "abcd"]


def homes(instances: int = 4, *, certain: bool = True) -> Homes:
    return Homes(HASHES, instances, certain=certain)


def ask(one: Homes, beginning: int) -> int:
    """One request that ends at once."""
    prefix = one.prefix_for(beginning, VIEWS)
    one.began(beginning)
    one.ended(beginning)
    return prefix


def test_prompts_of_which_none_comes_back_never_go_home() -> None:
    one = homes()
    assert not any(ask(one, beginning) for beginning in range(1, 2000))
    assert one.repeated == 0.0


def test_nothing_is_counted_of_beginnings_that_are_not_under_way() -> None:
    one = homes()
    for beginning in range(1, 100):
        ask(one, beginning)
    assert (one.under_way, one._alike) == (0, {})


def test_a_prompt_that_comes_back_goes_home_the_second_time() -> None:
    one = homes()
    assert [ask(one, 7), ask(one, 8), ask(one, 7), ask(one, 7)] == [0, 0, 7, 7]
    assert one.outcomes == {"home": 2, "unknown": 2, "crowded": 0, "no_cache_hits": 0}


def test_where_many_come_back_the_first_goes_home_as_well_so_that_the_second_finds_it() -> None:
    one = homes()
    for turn in range(200):
        ask(one, 1 + turn // 4)
    assert one.repeated > REPEATED_MIN
    assert ask(one, 999) == 999
    for beginning in range(1000, 1200):
        ask(one, beginning)
    assert one.repeated < REPEATED_MIN
    assert ask(one, 5000) == 0


def test_a_crowd_that_begins_alike_gets_no_more_than_a_fair_share_of_a_home() -> None:
    one = homes(instances=4)
    for other in range(1, 41):
        one.began(other)
    at_home = 0
    for _ in range(100):
        at_home += one.prefix_for(99, VIEWS) == 99
        one.began(99)
    assert at_home == 14  # of the first 15: the very first had not been seen, and 15 of 55 are one more than a quarter
    for _ in range(100):
        one.ended(99)
    assert one.under_way == 40
    assert one.prefix_for(99, VIEWS) == 99


def test_a_prompt_goes_home_only_when_an_engine_says_that_it_finds_prompts_in_its_cache() -> None:
    def told(*hits: int | None) -> int:
        views = [view(name, prefix_hits=count) for name, count in zip("abcd", hits, strict=True)]
        one = homes(certain=False)
        one.prefix_for(7, views)
        return one.prefix_for(7, views)

    assert told(None, None, None, None) == 0
    assert told(0, 0, None, 0) == 0, "caches that are off find nothing"
    assert told(0, 0, 1, 0) == 7


def test_no_beginning_is_no_request_and_what_is_remembered_is_bounded() -> None:
    one = homes()
    assert one.prefix_for(0, VIEWS) == 0
    assert repr(one) == "Homes(0 seen, repeated=0.000, under_way=0)"
    for beginning in range(1, SEEN_MAX + 2):
        ask(one, beginning)
    assert repr(one).startswith(f"Homes({SEEN_MAX} seen")
    assert ask(one, 1) == 0, "the least recently used was forgotten"
    assert ask(one, SEEN_MAX) == SEEN_MAX


def test_the_key_is_of_the_file_whatever_ends_its_line_and_else_another_at_each_start(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a secret of some length\n")
    other.write_bytes(b"a secret of some length\r\n")
    assert prefix_key(one) == prefix_key(other)
    assert len({prefix_key(None), prefix_key(None), prefix_key(one)}) == 3
    other.write_bytes(b"too short\n")
    for path, reason in ((other, "must hold a secret of 16"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(SettingsError, match=reason) as caught:
            prefix_key(path)
        assert caught.value.problems[0].key == "router.prefix_key_file"
        assert str(path) in str(caught.value)
        assert "too short" not in str(caught.value)


# Over HTTP.


def conversation(number: int, turns: int) -> dict[str, Any]:
    """The request of a turn, the first being 1: one system prompt for all, some 4,000 tokens of a user's own."""
    messages = [{"role": "system", "content": "You help with code. " * 100}]
    messages.append({"role": "user", "content": f"File {number}: " + "some code; " * 1200})
    for turn in range(1, turns):
        messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": f"And {turn}?"}]
    return {"model": "tiny", "stream": True, "max_tokens": 2, "messages": messages}


@pytest.mark.parametrize(
    ("path", "body", "hashed"),
    [
        ("/v1/chat/completions", conversation(1, 1), True),
        ("/v1/messages", {**conversation(1, 1), "messages": conversation(1, 1)["messages"][1:]}, True),
        ("/v1/responses", {"model": "tiny", "input": conversation(1, 1)["messages"]}, True),
        ("/v1/completions", {"model": "tiny", "prompt": "once upon a time " * 200}, True),
        ("/v1/embeddings", {"model": "tiny", "input": "once upon a time " * 200}, False),
        ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}, False),
    ],
)
async def test_long_prompts_that_are_answered_have_a_beginning(path: str, body: dict[str, Any], hashed: bool) -> None:
    async with stage(GOOD) as made:
        await post(made.url, body, path=path)
        assert made.dispatcher.asks[-1].beginning == 0, "nobody wants to know"
        made.dispatcher.hashing = HASHES
        await post(made.url, body, path=path)
        assert (made.dispatcher.asks[-1].beginning != 0) == hashed


class Told:
    """A fleet behind a router, and the decisions that it made."""

    def __init__(self, made: Fleet) -> None:
        self.fleet = made
        self.decisions: list[Decision] = []
        made.router.dispatcher.send_decision = lambda decided: self.decisions.append(decided.record())

    async def ask(self, body: dict[str, Any]) -> Decision:
        got = await post(self.fleet.url, body)
        assert got.status == 200, got.body
        return self.decisions[-1]

    def learn(self) -> None:
        """Let the router know what a token costs, alike at each engine, and so much that no delay counts."""
        dispatcher = self.fleet.router.dispatcher
        for tokens in (300, 6000, 1500, 12_000, 3000) * 40:
            work = int(work_of(tokens))
            for name in self.fleet.engines:
                event = FirstToken(instance=name, ttft_ms=50.0 + 0.2 * work, prompt_tokens=tokens, work=work)
                dispatcher.tell(event)

    async def turns(self, count: int = 10) -> list[list[Decision]]:
        """Return the decisions of conversations of four turns each that go on in turn."""
        made: list[list[Decision]] = [[] for _ in range(count)]
        for turn in range(1, 5):
            for number in range(count):
                made[number].append(await self.ask(conversation(number, turn)))
        return made


@contextlib.asynccontextmanager
async def told(**pool: Any) -> AsyncIterator[Told]:
    async with fleet(GOOD, GOOD, GOOD, **pool) as made:
        one = Told(made)
        one.learn()
        yield one


def home(decision: Decision) -> str:
    views = [view(one.instance) for one in decision.candidates if not one.excluded]
    return views[home_of(views, decision.prefix)].instance


@pytest.mark.behind_the_server
async def test_conversations_meet_at_a_home_each_and_move_when_it_is_loaded_or_gone() -> None:
    async with told(prefix_affinity=True) as one:
        later = [decision for turns in await one.turns() for decision in turns[1:]]
        assert all(decision.prefix for decision in later)
        assert len({decision.prefix for decision in later}) == 10
        met = [decision.winner == home(decision) for decision in later]
        assert sum(met) >= 27, Counter(zip([d.winner for d in later], map(home, later), strict=True))
        assert len({decision.winner for decision in later}) >= 2, "not all have one home"

        at_home = next(decision for decision in reversed(later) if decision.winner == home(decision))
        number = (len(later) - 1 - later[::-1].index(at_home)) // 3
        dispatcher = one.fleet.router.dispatcher
        leases = [dispatcher.book.book(at_home.winner, 20_000, dispatcher.clock()) for _ in range(3)]
        moved = await one.ask(conversation(number, 6))
        assert (moved.prefix, home(moved)) == (at_home.prefix, at_home.winner)
        assert moved.winner != at_home.winner, "its home is busy"
        for lease in leases:
            lease.release()

        dispatcher.tell(Membership(instance=at_home.winner, change="not_ready", cause="refused"))
        gone = [await one.ask(conversation(number, turn)) for turn in (7, 8, 9)]
        assert {decision.prefix for decision in gone} == {at_home.prefix}
        assert at_home.winner not in {home(decision) for decision in gone}
        assert sum(decision.winner == home(decision) for decision in gone) >= 2, "another home for all of them"


@pytest.mark.behind_the_server
@pytest.mark.parametrize("switch", ["prefix_affinity", "home"])
async def test_without_affinity_the_turns_of_a_conversation_spread(switch: str) -> None:
    async with told(prefix_affinity=switch != "prefix_affinity") as one:
        if switch == "home":
            one.fleet.router.dispatcher.pools["p"].policy = Predictive(home=0.0)
        made = await one.turns()
        assert any(decision.prefix for turns in made for decision in turns) == (switch == "home")
        stayed = sum(len({decision.winner for decision in turns[1:]}) == 1 for turns in made)
        assert stayed <= 6, "three engines alike: all of three turns at one by chance in one of nine"


async def test_a_decision_says_nothing_of_the_prompt_but_a_hash_that_needs_the_key(tmp_path: Path) -> None:
    found = []
    for secret in ("of one deployment", "of one deployment", "of another deployment"):
        (tmp_path / "key").write_text(secret)
        async with fleet(GOOD, GOOD, prefix_affinity=True, router={"prefix_key_file": str(tmp_path / "key")}) as made:
            one = Told(made)
            for turn in (1, 2):
                await one.ask(conversation(1, turn))
            found.append(one.decisions[-1].prefix)
            assert b"some code" not in encode(one.decisions[-1])
    assert found[0] == found[1] != found[2]
    assert 0 not in found


async def test_a_retry_does_not_go_home_and_no_attempt_is_counted_for_ever() -> None:
    async with fleet([error(500, "boom")], GOOD, [error(503, "busy")], prefix_affinity=True) as made:
        one = Told(made)
        for turn in range(1, 13):
            await one.ask(conversation(1, turn))
        firsts = [decision for decision in one.decisions if decision.attempt == 0]
        again = [decision for decision in one.decisions if decision.attempt]
        assert again, "an engine that fails was asked"
        assert all(decision.prefix for decision in firsts[1:])
        assert not any(decision.prefix for decision in again)
        pool = made.router.dispatcher.pools["p"].homes
        assert pool is not None
        await until(lambda: pool.under_way == 0)


@pytest.mark.behind_the_server
async def test_a_router_goes_on_from_what_it_has_seen_when_its_pools_are_made_anew() -> None:
    async with fleet(GOOD, GOOD, prefix_affinity=True) as made:
        one = Told(made)
        assert (await one.ask(conversation(1, 1))).prefix == 0
        pool = made.router.dispatcher.pools["p"]
        seen = pool.homes
        assert seen is not None
        adopt(made.router, made.settings, {})
        assert made.router.dispatcher.pools["p"] is not pool
        assert made.router.dispatcher.pools["p"].homes is seen
        assert (await one.ask(conversation(1, 2))).prefix != 0
        samples = await made.metrics()
        found = [
            samples[f'evenload_router_beginnings_total{{outcome="{why}",pool="p"}}'] for why in ("unknown", "home")
        ]
        assert found == [1, 1]
        off = made.settings.pools[0].model_copy(update={"prefix_affinity": False})
        adopt(made.router, made.settings.model_copy(update={"pools": (off,)}), {})
        assert (await one.ask(conversation(1, 3))).prefix == 0
        assert seen.under_way == 0


def pool_of(**keys: Any) -> Any:
    made = {"name": "p", "models": ["m"], "instances": [{"id": "a", "url": "http://a"}], **keys}
    return Settings.model_validate({"pools": [made]}).pools[0]


def test_affinity_is_of_the_policy_that_knows_it() -> None:
    assert pool_of().affine
    assert not pool_of(prefix_affinity=False).affine
    assert not pool_of(policy="least-connections").affine
    assert not pool_of(instances=[{"id": "a", "url": "http://a", "kind": "none"}]).affine, "providers only"
    with pytest.raises(ValueError, match="policy random does not know how prompts begin; predictive does"):
        pool_of(policy="random", prefix_affinity=True)


def test_a_state_says_by_default_that_nothing_is_known_of_a_cache() -> None:
    assert InstanceState(instance="a").prefix_hits is None
