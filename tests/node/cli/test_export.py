"""`ftnode export` and `ftnode generate` as a person meets them; through a swarm: tests/swarm/test_export.py."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from ftnode.node.cli.export import _harmless, ended_by_any_signal, shown_progress, what_next
from ftnode.node.export.checkpoint import creating
from ftnode.node.export.generate import decode_bytes
from ftnode.node.home.files import json_bytes
from ftnode.node.home.identity import home_directory
from ftnode.node.watch.status import Speaker, SwarmStatus
from ftnode.node.watch.status_table import plain_lines
from tests.node.cli.cli_runner import Seen
from tests.node.export.test_checkpoint import manifest, rough_stages, write

NOBODY = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWCqmTFTMp1u6FrExeQeMpqtVPB2qbxAntctnzuQb3FX4K"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "out"
    write(out, manifest(), rough_stages(manifest()))
    return out


def test_mistakes_are_one_line(
    tmp_path: Path, manifest_file: Path, text_file: Path, ftnode: Callable[..., Seen]
) -> None:
    home = ("--home", home_directory(str(tmp_path / "home")))
    out = tmp_path / "out"
    assert ftnode("export", tmp_path / "no.toml", out, *home).refused(66, "there is no manifest", "run init")
    assert ftnode("export", text_file, out, *home).refused(78, "not TOML")
    assert ftnode("export", manifest_file, out, *home).refused(64, "pass --peer ADDR")
    assert ftnode("export", manifest_file, out, "--peer", "x", *home).refused(64, "is no multiaddr")
    missing = ("--tokenizer", tmp_path / "none")
    assert ftnode("export", manifest_file, out, "--peer", NOBODY, *missing, *home).refused(66, "cannot read the token")
    out.mkdir()
    (out / "mine.txt").touch()
    assert ftnode("export", manifest_file, out, "--peer", NOBODY, *home).refused(73, "is there and not empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "out", "pair.toml", "text.txt"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_export_that_is_ended_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """As when a machine shuts down, or its terminal is closed: a large model would be left, in a hidden folder."""
    before = signal.getsignal(number)

    async def end() -> None:
        os.kill(os.getpid(), number)
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt), ended_by_any_signal(), creating(tmp_path / "out", manifest()) as checkpoint:
        checkpoint.open_stage(0).write(b"half")
        trio.run(end)
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) is before


def test_a_swarm_that_nobody_finds(tmp_path: Path, manifest_file: Path, ftnode: Callable[..., Seen]) -> None:
    """Through a real p2pd."""
    seen = ftnode(
        "export", manifest_file, tmp_path / "out", "--peer", NOBODY, "--timeout", 5, "--home", tmp_path / "home"
    )
    assert seen.refused(69, "nobody who was asked takes part in the run", "pass --peer ADDR")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pair.toml", "text.txt"]


def test_the_reader_loads_neither_torch_nor_a_second_libp2p(tmp_path: Path, manifest_file: Path) -> None:
    arguments = ["export", str(manifest_file), str(tmp_path / "out"), "--peer", NOBODY, "--timeout", "1"]
    code = (
        "import sys\nfrom ftnode.node.cli.main import main\n"
        f"assert main({[*arguments, '--home', str(tmp_path / 'home')]!r}) == 69\n"
        "import ftnode.node.export.model_card\n"
        "print([name for name in ('torch', 'hivemind', 'libp2p', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_status_of_a_finished_run_says_how_to_get_the_model() -> None:
    status = SwarmStatus(Speaker("p", "0", "cpu", "volunteer"), run="r", name="n", step=9, steps=9, state="finished")
    assert "ftnode export MANIFEST DIR" in "\n".join(plain_lines(status))
    assert "ftnode export" not in "\n".join(plain_lines(replace(status, state="training")))


def test_a_shell_takes_the_line_to_try_the_model_whole() -> None:
    line = what_next(Path("my model")).removeprefix("try it: ").split(";")[0]
    assert shlex.split(line) == ["ftnode", "generate", "my model", "…"]
    assert what_next(Path("model")).startswith('try it: ftnode generate model "…";')


def test_a_text_goes_on(exported: Path, ftnode: Callable[..., Seen]) -> None:
    options = ("--tokens", 12, "--seed", 4)
    first, again = (ftnode("generate", exported, "To be", *options, "--json") for _ in range(2))
    assert first.code == 0 and first == again
    found = json.loads(first.out)
    assert found["prompt"] == "To be" and found["text"]
    shown = ftnode("generate", exported, "To be", *options)
    assert shown.out == f"To be{_harmless(found['text'])}\n"


def test_a_text_ends_with_its_document(tmp_path: Path, exported: Path, ftnode: Callable[..., Seen]) -> None:
    for path in exported.iterdir():
        (tmp_path / path.name).symlink_to(path)
    options = ("--tokens", 30, "--temperature", 0, "--json")
    drawn = json.loads(ftnode("generate", exported, "To be", *options).out)["text"]
    config = json.loads((exported / "config.json").read_text())
    assert config["eos_token_id"] == 0
    (tmp_path / "config.json").unlink()

    def text(end: int) -> str:
        (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": end}))
        found: str = json.loads(ftnode("generate", tmp_path, "To be", *options).out)["text"]
        return found

    ending = next(letter for letter in drawn if letter.isascii())
    assert text(ord(ending)) == drawn[: drawn.index(ending)]


def test_a_reason_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress(1, as_json=False) as shown:
        for reason in ("stage 2 has no holder now", "stage 2 has no holder now", "stage 1 is at step 9"):
            shown.tell(reason)
    assert capsys.readouterr().err.splitlines() == [
        "ftnode: stage 2 has no holder now; trying again", "ftnode: stage 1 is at step 9; trying again",
    ]  # fmt: skip


def test_a_folder_that_is_no_model(tmp_path: Path, exported: Path, ftnode: Callable[..., Seen]) -> None:
    assert ftnode("generate", tmp_path, "x").refused(66, "no exported model", "ftnode export")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert ftnode("generate", tmp_path, "x").refused(66, "has adapters alone", "--from MODEL")
    (tmp_path / "config.json").write_text("{}")
    assert ftnode("generate", tmp_path, "x").refused(65, "config.json")
    assert ftnode("generate", exported, "").refused(65, "the prompt has no tokens")
    assert ftnode("generate", exported, os.fsdecode(b"caf\xe9")).refused(65, "the prompt is not in UTF-8")
    assert ftnode("generate", exported, "x", "--device", "tpu").refused(64, "--device tpu is unknown")


def test_another_tokenizer_needs_its_library(tmp_path: Path, exported: Path, ftnode: Callable[..., Seen]) -> None:
    pytest.importorskip("tokenizers")
    for path in exported.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "tokenizer.json").unlink()
    assert ftnode("generate", tmp_path, "a b").refused(66, "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert ftnode("generate", tmp_path, "a b").refused(65, "is no tokenizer")
    model = {"type": "WordLevel", "vocab": {f"w{n}": n for n in range(300)}, "unk_token": "w0"}
    words = {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    (tmp_path / "tokenizer.json").write_bytes(json_bytes(words))
    seen = ftnode("generate", tmp_path, "w1 w2", "--tokens", 3, "--json")
    assert json.loads(seen.out)["text"].count("w") == 3


def test_what_a_model_says_does_not_steer_the_terminal() -> None:
    assert _harmless("a\x1b[31mb\r\n\tc\x07") == "a�[31mb�\n\tc�"


@pytest.mark.parametrize(
    ("tokens", "text"), [(b"ab", "ab"), ("é🙂".encode(), "é🙂"), (b"\xe9a", "�a"), (b"\xf0\x9f", "�")]
)
def test_letters_of_several_bytes_wait_for_their_rest(tokens: bytes, text: str) -> None:
    def drawn() -> Iterator[int]:
        yield from tokens

    assert "".join(decode_bytes(drawn())) == text
    assert "".join(decode_bytes(iter([97, 299]))) == "a�"
