"""`ftnode run`: what is written can be read, nothing is written over, sizes are true."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ftnode.node.cli.manifest import write_new
from ftnode.node.home.identity import home_directory, take_identity
from ftnode.node.manifests.presets import PRESETS
from ftnode.protocol.manifest.parse import parse
from ftnode.protocol.words.errors import UserError
from tests.node.cli.cli_runner import Seen


def test_init_writes_a_commented_manifest(manifest_file: Path) -> None:
    text = manifest_file.read_text()
    manifest = parse(text)
    assert (manifest.run.name, manifest.pipeline.stages, manifest.data.kind) == ("pair", 2, "files")
    keys = [line for line in text.splitlines() if " = " in line and not line.startswith("#")]
    explained = [line for before, line in zip(text.splitlines(), text.splitlines()[1:]) if before.startswith("# ")]
    assert set(keys) <= set(explained)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("mein lauf ü.toml", "mein-lauf-u"), ("A_b c.toml", "A_b-c"), ("日本.toml", "tiny"), ("-- x.toml", "x"),
        ("own-run.v2.toml", "own-run.v2"), ("m-checkfree+.toml", "m-checkfree-plus"), (f"{'x' * 70}.toml", "x" * 64),
    ],
)  # fmt: skip
def test_a_run_that_is_not_called_as_its_file_says_so(
    file: str, name: str, tmp_path: Path, text_file: Path, ftnode: Callable[..., Seen]
) -> None:
    seen = ftnode("run", "init", tmp_path / file, "--data", text_file)
    assert seen.code == 0 and parse((tmp_path / file).read_text()).run.name == name
    assert (f"the run is called {name}: " in seen.out) == (Path(file).stem != name)


def test_init_takes_every_option(tmp_path: Path, text_file: Path, ftnode: Callable[..., Seen]) -> None:
    path = tmp_path / "own.toml"
    options = ["--preset", "small", "--data", text_file, "--stages", 6, "--steps", 70, "--seed", 9]
    assert ftnode("run", "init", path, *options).code == 0
    manifest = parse(path.read_text())
    assert (manifest.model.dim, manifest.pipeline.stages, manifest.run.steps, manifest.run.seed) == (512, 6, 70, 9)


def test_two_corpora_are_not_taken_for_one(tmp_path: Path, text_file: Path, ftnode: Callable[..., Seen]) -> None:
    """Of `join` the last one counts, so that a script can add to what another one gave."""
    path = tmp_path / "own.toml"
    assert ftnode("run", "init", path, "--data", text_file, "--data", tmp_path).refused(64, "--data", "more than once")
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "every"),
    [([], 40), (["--preset", "small"], 250), (["--steps", 70], 10), (["--steps", 5], 10),
     (["--preset", "compute-bound", "--steps", 5000], 100), (["--snapshot-every", 0], 0), (["--snapshot-every", 7], 7)],
)  # fmt: skip
def test_what_a_swarm_needs_to_be_switched_off_is_on_by_default(
    options: list[object], every: int, tmp_path: Path, text_file: Path, ftnode: Callable[..., Seen]
) -> None:
    path = tmp_path / "kept.toml"
    assert ftnode("run", "init", path, "--data", text_file, *options).code == 0
    assert parse(path.read_text()).recovery.snapshot_every == every
    chosen = "switched off as a whole goes on from there" in path.read_text()
    assert chosen is ("--snapshot-every" not in options)


def test_init_chooses_for_a_line_and_says_why(tmp_path: Path, text_file: Path, ftnode: Callable[..., Seen]) -> None:
    path = tmp_path / "home.toml"
    seen = ftnode("run", "init", path, "--preset", "small", "--data", text_file, "--line", "20/100Mbit")
    assert "over 20/100 Mbit/s and 30 ms" in seen.out and "home.toml says what was chosen" in seen.out
    text = path.read_text()
    manifest = parse(text)
    assert (manifest.pipeline.boundary, manifest.optimiser.kind, manifest.pipeline.window) == ("int4", "muon", 20)
    assert text.count("# Chosen: ") >= 7 and "131 s with float32" in text
    other = tmp_path / "same.toml"
    assert ftnode("run", "init", other, "--preset", "small", "--data", text_file, "--line", "20Mbit").code == 0
    assert parse(other.read_text().replace('"same"', '"home"')).run_id == manifest.run_id


def test_show_says_what_a_volunteer_needs(tmp_path: Path, text_file: Path, ftnode: Callable[..., Seen]) -> None:
    def needed(*options: object) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.toml"
        assert ftnode("run", "init", path, "--data", text_file, "--preset", "small", *options).code == 0
        return next(line for line in ftnode("run", "show", path).out.splitlines() if "needs" in line)

    kept, none = needed(), needed("--snapshot-every", 0)
    assert kept.startswith("a volunteer with one block stage needs ") and "MB of device memory" in kept
    assert "of disk besides 2 GB for logs" in kept and "MB a step" in kept
    assert "0 bytes of disk besides" in none and kept != none


def test_reasons_are_comments(manifest_file: Path, ftnode: Callable[..., Seen]) -> None:
    """They are no part of the run's id, and signing keeps them."""
    text = manifest_file.read_text()
    assert "# Chosen: int8 needed no more steps" in text
    bare = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("# Chosen"))
    assert parse(bare).run_id == parse(text).run_id
    manifest_file.write_text(text.replace("steps = 400", "steps = 401"))
    assert ftnode("run", "sign", manifest_file).code == 0
    assert [line for line in text.splitlines() if line.startswith("# Chosen")] == [
        line for line in manifest_file.read_text().splitlines() if line.startswith("# Chosen")
    ]


@pytest.mark.parametrize("line", ["fast", "20", "20/Mbit", "20/100", "1/1bit", "0Mbit", "-1Mbit"])
def test_a_line_that_is_none_is_refused(line: str, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    assert ftnode("run", "init", tmp_path / "x.toml", "--line", line).refused(64, "--line")
    assert not list(tmp_path.iterdir())


def test_the_corpus_decides_the_hash(tmp_path: Path, text_file: Path, ftnode: Callable[..., Seen]) -> None:
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text() + "!")
    hashes = []
    for number, data in enumerate([text_file, text_file, other]):
        path = tmp_path / f"{number}.toml"
        ftnode("run", "init", path, "--data", data)
        hashes.append(parse(path.read_text()).data.sha256)
    assert hashes[0] == hashes[1] != hashes[2]


def test_init_never_writes_over_a_file(manifest_file: Path, text_file: Path, ftnode: Callable[..., Seen]) -> None:
    before = manifest_file.read_bytes()
    assert ftnode("run", "init", manifest_file, "--data", text_file).refused(73, "already there", "choose another name")
    assert manifest_file.read_bytes() == before


def test_init_in_a_folder_that_is_not_there(tmp_path: Path, text_file: Path, ftnode: Callable[..., Seen]) -> None:
    assert ftnode("run", "init", tmp_path / "no" / "x.toml", "--data", text_file).refused(73, "cannot write")


def full_disk(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_no_half_manifest(
    manifest_file: Path, text_file: Path, tmp_path: Path, ftnode: Callable[..., Seen]
) -> None:
    manifest_file.write_text(manifest_file.read_text().replace("steps = ", "steps = 1"))
    before, folder = manifest_file.read_text(), tmp_path / "new"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        says = ("cannot write", "No space left", "check the folder")
        assert ftnode("run", "init", folder / "x.toml", "--data", text_file).refused(73, *says)
        assert ftnode("run", "sign", manifest_file).refused(73, *says)
    assert not list(folder.iterdir()) and manifest_file.read_text() == before
    assert ftnode("run", "init", folder / "x.toml", "--data", text_file).code == 0
    assert [path.name for path in folder.iterdir()] == ["x.toml"]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_came_meanwhile_stays(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    write_new(tmp_path / "x.toml", "mine")
    with pytest.raises(UserError, match="already there"):
        write_new(tmp_path / "x.toml", "other")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"x.toml": "mine"}


def test_init_with_a_preset_that_is_none(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    path = tmp_path / "x.toml"
    assert ftnode("run", "init", path, "--preset", "huge").refused(64, "no preset is called huge", "tiny")
    assert not path.exists()


@pytest.mark.parametrize("make", ["missing", "empty folder", "unreadable"])
def test_init_with_data_that_cannot_be_used(make: str, tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    data, path = tmp_path / "data", tmp_path / "x.toml"
    if make == "empty folder":
        data.mkdir()
    elif make == "unreadable":
        if os.geteuid() == 0:
            pytest.skip("root reads everything")
        data.write_text("text")
        data.chmod(0)
    assert ftnode("run", "init", path, "--data", data).refused(66, "data", str(data))
    assert not path.exists()


def test_init_with_a_text_that_is_too_short(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    data, path = tmp_path / "short.txt", tmp_path / "x.toml"
    data.write_text("x" * 1000)
    assert ftnode("run", "init", path, "--data", data).refused(65, "validation part", "50 bytes", "a longer text")
    assert not path.exists()


def test_validate(manifest_file: Path, ftnode: Callable[..., Seen]) -> None:
    seen = ftnode("run", "validate", manifest_file)
    assert seen.code == 0 and "is a valid manifest" in seen.out and "parameters" in seen.out


def test_what_programs_read_is_the_same_of_each_command(
    tmp_path: Path, text_file: Path, ftnode: Callable[..., Seen]
) -> None:
    path = tmp_path / "own.toml"
    made = json.loads(ftnode("run", "init", path, "--data", text_file, "--json").out)
    shown = json.loads(ftnode("run", "show", path, "--json").out)
    assert (made["manifest"], made["name"], made["revision"]) == (str(path), "own", 0)
    assert {name: made[name] for name in ("run_id", "signer", "sizes")} == {
        name: shown[name] for name in ("run_id", "signer", "sizes")
    }
    assert made["signer"] and json.loads(ftnode("run", "validate", path, "--json").out) == made
    before = path.read_text()
    assert json.loads(ftnode("run", "sign", path, "--json").out) == made | {"changed": False, "raised": False}
    assert path.read_text() == before
    path.write_text(before.replace("seed = 1", "seed = 5"))
    again = json.loads(ftnode("run", "sign", path, "--json").out)
    assert again["changed"] and not again["raised"] and again["run_id"] != made["run_id"]
    path.write_text(path.read_text().replace("peers = []", f'peers = ["{made["signer"]}"]'))
    listed = json.loads(ftnode("run", "sign", path, "--json").out)
    assert listed["raised"] and listed["revision"] > again["revision"] and listed["run_id"] == again["run_id"]
    path.write_text(path.read_text().partition("[signature]")[0])
    assert json.loads(ftnode("run", "validate", path, "--json").out)["signer"] == ""


def test_validate_says_line_and_nearest_name(manifest_file: Path, ftnode: Callable[..., Seen]) -> None:
    text = manifest_file.read_text().replace("\nwindow = ", "\nwindwo = ")
    manifest_file.write_text(text)
    line = next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith("windwo"))
    assert ftnode("run", "validate", manifest_file).refused(78, f"pair.toml, line {line}:", "did you mean window?")


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (None, 66, "there is no manifest"),
        (b"\xff\xfe", 65, "no UTF-8 text"),
        (b"#" * (1 << 20) + b"#", 65, "larger than"),
        (b"hello", 78, "is not TOML"),
        (b"", 78, "may not be a manifest"),
    ],
)
def test_what_is_no_manifest(
    content: bytes | None, code: int, says: str, tmp_path: Path, ftnode: Callable[..., Seen]
) -> None:
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_bytes(content)
    assert ftnode("run", "show", path).refused(code, says)


def test_a_folder_is_no_manifest(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    assert ftnode("run", "show", tmp_path).refused(66, "is a folder")
    assert ftnode("run", "show", "https://example.org/run.toml").refused(66, "not a URL")
    assert ftnode("join", "/ip4/192.0.2.7/tcp/31337/p2p/12D3").refused(66, "belongs behind --peer")
    peer_id = take_identity(tmp_path).peer_id
    assert ftnode("join", peer_id).refused(66, "PeerId", "--peer")
    assert ftnode("run", "show", f"ftnode:{'ab' * 16}?peer=x").refused(66, "ftnode run fetch LINK FILE")
    for host in ("192.0.2.7:31337", "swarm.example.org:31337", "192.0.2.7", "[2001:db8::7]:31337"):
        assert ftnode("join", host).refused(66, "that is a host and no manifest", "--peer"), host
    assert ftnode("join", "help").refused(66, "ftnode join --help")
    (tmp_path / "tiny.toml").touch()
    assert ftnode("run", "show", tmp_path / "tiny").refused(66, f"there is one called {tmp_path / 'tiny.toml'}")
    assert ftnode("run", "show", tmp_path / "large").refused(66, "ftnode run init")


@pytest.mark.parametrize("name", ["https://example.org/run.toml", "/ip4/192.0.2.7/tcp/31337", "ftnode:abc"])
def test_what_is_no_name_of_a_new_file(name: str, ftnode: Callable[..., Seen]) -> None:
    assert ftnode("run", "init", name).refused(64, f"{name} is no name for a new file")


def test_a_link_is_no_address(manifest_file: Path, ftnode: Callable[..., Seen]) -> None:
    link = f"ftnode:{'ab' * 16}?peer=x"
    assert ftnode("join", manifest_file, "--peer", link).refused(64, "the link of a run", "without --peer")


def test_show_prints_true_sizes(manifest_file: Path, ftnode: Callable[..., Seen]) -> None:
    """Counted by hand for the blocks' seven matrices and two norms, and the head's embedding, norm and LM head."""
    found = json.loads(ftnode("run", "show", manifest_file, "--json").out)
    model, sizes = found["model"], found["sizes"]
    dim, hidden, layers = model["dim"], model["hidden"], model["layers"]
    block = 4 * dim * dim + 3 * dim * hidden + 2 * dim
    head = 256 * dim + dim + dim * 256
    assert sizes["parameters"] == layers * block + head
    assert sizes["parameters_per_stage"] == layers // 2 * block
    assert found["run_id"] == parse(manifest_file.read_text()).run_id


def test_show_says_what_a_step_takes_over_lines(manifest_file: Path, ftnode: Callable[..., Seen]) -> None:
    """Each volunteer sends 8 microbatches both ways, tensors of 8 × 64 × 96 int8, a scale for 32 of them."""
    found = json.loads(ftnode("run", "show", manifest_file, "--json", "--device-tflops", 2).out)["lines"]
    assert found["assumed"]["device_tflops"] == 2 and [one["up_mbit"] for one in found["steps"]] == [10, 20, 50, 200]
    sent = 8 * 2 * 8 * 64 * (96 + 2 * 3)
    assert [stage["up_bytes"] for stage in found["stages"]] == [sent] * 3
    seconds = [one["seconds"] for one in found["steps"]]
    assert seconds == sorted(seconds, reverse=True) and seconds[1] > sent / 2.5e6
    shares = [one["busy"][1] for one in found["steps"]]
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] < 0.3
    three = json.loads(ftnode("run", "show", manifest_file, "--json", "--holders", 3).out)["lines"]
    assert three["stages"][1]["of_these_sums"] > 0 and three["steps"][0]["busy"] == [None] * 3


def test_show_has_a_row_for_each_stage_that_differs(manifest_file: Path, ftnode: Callable[..., Seen]) -> None:
    lines = ftnode("run", "show", manifest_file).out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("stage "))
    assert "5 times as much down as up, and 30 ms" in lines[first - 1]
    assert [line.split("  ")[0] for line in lines[first + 1 : first + 4]] == ["a step", "head", "1 to 2"]
    assert "--device-tflops N says" in lines[first + 4]
    shown = ftnode("run", "show", manifest_file, "--device-tflops", "0.5").out
    assert "that reaches 0.5 TFLOP/s" in shown and " %" in shown
    assert ftnode("run", "show", manifest_file, "--device-tflops", "0").code == 64


@pytest.mark.parametrize(("name", "millions"), [("small", 38), ("medium", 303), ("large", 1211)])
def test_presets_of_the_paper_have_their_size(name: str, millions: int) -> None:
    from ftnode.node.cli.manifest import sizes

    assert sizes(PRESETS[name])["parameters"] == pytest.approx(millions * 1e6, rel=0.01)


def test_init_signs_and_sign_signs_again(manifest_file: Path, ftnode: Callable[..., Seen]) -> None:
    author = parse(manifest_file.read_text()).run.author
    assert author and f"signed by {author}" in ftnode("run", "validate", manifest_file).out
    assert "is signed already" in ftnode("run", "sign", manifest_file).out
    manifest_file.write_text(manifest_file.read_text().replace("seed = 1", "# mine\nseed = 5"))
    assert ftnode("run", "validate", manifest_file).refused(78, "was changed after it was signed", "ftnode run sign")
    assert ftnode("run", "show", manifest_file).refused(78, "was changed after it was signed")
    assert f"signed {manifest_file} as {author}" in ftnode("run", "sign", manifest_file).out
    assert f"signed by {author}" in ftnode("run", "validate", manifest_file).out
    assert "# mine" in manifest_file.read_text()


def test_another_machine_cannot_sign_an_author_s_manifest(
    manifest_file: Path, tmp_path: Path, ftnode: Callable[..., Seen]
) -> None:
    before = manifest_file.read_bytes()
    seen = ftnode("run", "sign", manifest_file, "--home", tmp_path / "another")
    assert seen.refused(77, "belongs to the author", "only the author can sign it")
    assert manifest_file.read_bytes() == before


def test_an_unsigned_manifest_is_shown_as_such(manifest_file: Path, ftnode: Callable[..., Seen]) -> None:
    manifest_file.write_text(manifest_file.read_text().partition("[signature]")[0])
    assert "not signed" in ftnode("run", "validate", manifest_file).out
    assert json.loads(ftnode("run", "show", manifest_file, "--json").out)["signer"] == ""
    assert ftnode("run", "push", manifest_file).refused(78, "is not signed")


def test_an_edited_list_is_signed_by_its_author_again(manifest_file: Path, ftnode: Callable[..., Seen]) -> None:
    assert ftnode("run", "sign", manifest_file).code == 0
    text = manifest_file.read_text()
    author = parse(text).run.author
    manifest_file.write_text(text.replace("peers = []", f'peers = ["{author}"]'))
    assert manifest_file.read_text() != text
    assert ftnode("run", "push", manifest_file).refused(78, "if you are the author: ftnode run sign")


def test_only_the_author_of_a_run_with_snapshots_orders_a_rollback(
    tmp_path: Path, text_file: Path, ftnode: Callable[..., Seen]
) -> None:
    manifest_file = tmp_path / "kept.toml"
    assert ftnode("run", "init", manifest_file, "--data", text_file, "--snapshot-every", 5).code == 0
    before = manifest_file.read_bytes()
    another = home_directory(str(tmp_path / "another"))
    stranger = ftnode("run", "rollback", manifest_file, "--to-step", 3, "--home", another)
    assert stranger.refused(77, "only its author orders a rollback")
    nobody = "/ip4/127.0.0.1/tcp/9/p2p/" + parse(manifest_file.read_text()).run.author
    assert ftnode("run", "rollback", manifest_file, "--to-step", 3, "--peer", nobody, "--timeout", 1).code == 69
    assert manifest_file.read_bytes() == before, "nobody has the order"
    none = tmp_path / "none.toml"
    assert ftnode("run", "init", none, "--data", text_file, "--snapshot-every", 0).code == 0
    assert ftnode("run", "rollback", none, "--to-step", 3).refused(78, "volunteers keep no snapshots")
    assert ftnode("run", "rollback", none).code == 64


def test_show_makes_the_link(manifest_file: Path, ftnode: Callable[..., Seen]) -> None:
    from ftnode.node.manifests.invitation import parse_link

    manifest = parse(manifest_file.read_text())
    address = f"/ip4/192.0.2.7/tcp/31337/p2p/{manifest.run.author}"
    seen = ftnode("run", "show", manifest_file, "--peer", address, "--json")
    link = parse_link(json.loads(seen.out)["link"])
    assert (link.run_id, link.author, link.peers) == (manifest.run_id, manifest.run.author, (address,))
    assert f"ftnode join 'ftnode:{manifest.run_id}" in ftnode("run", "show", manifest_file, "--peer", address).out
    assert ftnode("run", "show", manifest_file, "--peer", "nowhere").code == 64


@pytest.mark.parametrize(("preset", "files", "code", "says"), [
    ([], None, 66, "cannot read"),
    ([], {}, 66, "config.json"),
    ([], {"config.json": "{"}, 65, "is no JSON"),
    ([], {"config.json": '{"model_type": "mixtral"}'}, 65, "is of a mixtral; taken are llama, mistral, qwen2"),
    ([], {"config.json": '{"model_type": "llama", "quantization_config": {"bits": 4}}'}, 65, "a quantization_config"),
    (["--preset", "small"], {}, 64, "--preset and --from exclude each other"),
])  # fmt: skip
def test_a_folder_without_a_model_is_one_line(
    preset: list[str], files: dict[str, str] | None, code: int, says: str, tmp_path: Path, text_file: Path,
    ftnode: Callable[..., Seen],
) -> None:  # fmt: skip
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    manifest = tmp_path / "run.toml"
    seen = ftnode("run", "init", str(manifest), "--from", str(folder), "--data", str(text_file), *preset)
    assert seen.code == code and says in seen.err and len(seen.err.strip().splitlines()) == 1, seen
    assert not manifest.exists()


def test_show_prints_values_as_a_manifest_has_them(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    path = tmp_path / "tiny.toml"
    ftnode("run", "init", path)
    shown = ftnode("run", "show", path).out
    assert "tied false" in shown and "betas [0.9, " in shown and "peers []" in shown and 'tokenizer ""' in shown
    assert "False" not in shown and "()" not in shown


def test_a_mark_that_some_editors_begin_with_is_passed_over(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    path = tmp_path / "tiny.toml"
    ftnode("run", "init", path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert ftnode("run", "validate", path).code == 0


@pytest.mark.parametrize("option", ["--steps", "--seed"])
def test_a_number_that_no_manifest_takes_is_the_options_fault(
    option: str, tmp_path: Path, ftnode: Callable[..., Seen]
) -> None:
    assert ftnode("run", "init", tmp_path / "x.toml", option, 10**22).refused(64, option)
