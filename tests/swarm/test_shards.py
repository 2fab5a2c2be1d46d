"""A swarm trains on token shards that one volunteer was given: others get them from it and hold the head after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftnode.lab.audit.audit import audit
from ftnode.lab.swarms.trial import Trial, open_trial, small_manifest
from ftnode.lab.traces.story import Story
from ftnode.models.shards import check_file, read_index
from ftnode.node.data.build import Built, build
from ftnode.node.data.records import find_sources
from ftnode.node.data.tokenizers import open_tokenizer
from ftnode.node.owner.join_options import shards_folder

pytestmark = pytest.mark.timeout(600)

STAGES = 2
WAIT_SECONDS = 240.0


@pytest.fixture
def built(tmp_path: Path, text: Path) -> Built:
    """More files than one, so that whoever fetches them is seen half way."""
    sources, tokenizer = find_sources([str(text)], "text"), open_tokenizer("bytes")
    return build(sources, tokenizer, tmp_path / "shards", shard_bytes=20_000)


def own_shards(trial: Trial, name: str, built: Built) -> Path:
    return shards_folder(trial.swarm.processes[name].home, built.sha256)


def has_all(trial: Trial, name: str) -> bool:
    """It says so itself, and then offers itself for the head."""
    return " files of the run's shards are here, " in trial.swarm.processes[name].output.read_text(errors="replace")


def test_the_head_survives_the_only_one_that_was_given_the_data(tmp_path: Path, built: Built) -> None:
    manifest = small_manifest(built.folder, STAGES)
    assert manifest.data.kind == "shards" and manifest.data.sha256 == built.sha256
    with open_trial(manifest, tmp_path) as trial:
        trial.volunteer("given", options=["--data", str(built.folder)])
        others = ["second", "third"]
        for name in others:
            trial.volunteer(name)
        trial.wait_for_step(3, WAIT_SECONDS)
        others.append("later")
        trial.volunteer("later")
        trial.wait("the shards of all", lambda story: all(has_all(trial, name) for name in others), WAIT_SECONDS)
        for name in others:
            folder = own_shards(trial, name, built)
            index, sha256 = read_index(folder)
            assert sha256 == built.sha256 and len(index.shards) > 5
            for file in index.files:
                check_file(folder, file)
                assert not (folder / file.name).is_symlink()
        trial.kill("given")

        def another_head(story: Story) -> bool:
            return bool(story.holders(0)) and "given" not in story.holders(0)

        trial.wait("another holder of the head", another_head, WAIT_SECONDS)
        trial.wait_for_step(trial.story.committed + 3, WAIT_SECONDS)
    findings = audit(tmp_path / "logs")
    assert findings.passed, [str(finding) for finding in findings.findings[:10]]
