"""Manifests: what is read, what is refused and how it is said, and that the id depends on nothing but values."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pytest

from ftnode.models.config import ModelConfig
from ftnode.models.encoded_size import encoded_bytes
from ftnode.node.manifests.presets import PRESETS, adapt
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.manifest.parse import (
    Batch,
    Data,
    Evaluation,
    Liveness,
    Manifest,
    Membership,
    Model,
    Optimiser,
    Pipeline,
    Recovery,
    Run,
    Trust,
    parse,
    render,
    settings,
)
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.types import Direction
from tests.protocol.manifest.earlier import in_format

TINY = Manifest(
    Run("tiny", seed=1, steps=300),
    Model(256, dim=96, heads=4, layers=4, context=64, hidden=256, rope_theta=10000.0, norm_eps=1e-5),
    Data("standard-library", "ab" * 32),
    Optimiser(0.004, (0.9, 0.99), 1e-8, 0.0, warmup_steps=20, decay="cosine", minimum_factor=0.1, clip=1.0),
    Batch(microbatches=8, sequences=16),
    Pipeline(stages=4, replicas=2, window=8, live_activations=8, boundary="float32", swap=False),
    Recovery("copy", "copy", "squared-norm", "before-clipping", "fresh", 0, 0, "bfloat16", 1.1, 60.0),
    Liveness(10.0),
    Evaluation(every=50, microbatches=8),
)
PEER = "12D3KooWDbGXCrt4JRxi6D2aGzejQxxQKULeYXoc1FbmEBw7ZT3u"
TEXT = render(TINY, "A heading\nof two lines.")


def changed(old: str, new: str) -> str:
    """The tiny manifest with one line exchanged; the line must be there."""
    assert f"\n{old}\n" in TEXT
    return TEXT.replace(f"\n{old}\n", f"\n{new}\n")


def line_of(text: str, line: str) -> int:
    return text.splitlines().index(line) + 1


def refusal(text: str) -> str:
    with pytest.raises(UserError) as caught:
        parse(text, "tiny.toml")
    assert caught.value.exit_code == 78
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_writing_and_reading(name: str) -> None:
    manifest = adapt(PRESETS[name], sha256="0f" * 32)
    assert parse(render(manifest)) == manifest


def test_id_ignores_comments_order_and_spelling() -> None:
    blocks = TEXT.split("\n\n")
    shuffled = "\n\n".join([*blocks[:2], *reversed(blocks[2:])])
    bare = "\n".join(line for line in shuffled.splitlines() if not line.startswith("#"))
    spelled = bare.replace("learning_rate = 0.004", "learning_rate   = 4e-3").replace("clip = 1.0", "clip = 1")
    assert spelled != bare != TEXT
    assert parse(spelled).run_id == TINY.run_id == parse(TEXT).run_id


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seed = 1", "seed = 2"),
        ("learning_rate = 0.004", "learning_rate = 0.0041"),
        ("betas = [0.9, 0.99]", "betas = [0.9, 0.98]"),
        ('decay = "cosine"', 'decay = "constant"'),
        ("lease_seconds = 10.0", "lease_seconds = 11.0"),
    ],
)
def test_id_follows_every_value(old: str, new: str) -> None:
    assert parse(changed(old, new)).run_id != TINY.run_id


def test_id_is_fixed() -> None:
    """Two versions of ftnode must agree about it: another value here needs another manifest format."""
    assert TINY.run_id == "d53b3ab5d0d75b6e6d7a8c94d16cbd9f"


def test_a_later_key_changes_the_id_only_where_it_says_something() -> None:
    """Runs of format 4, and their signatures, go on with an ftnode that writes a later format."""
    assert parse(TEXT.replace("rollback_max = 0", "rollback_max = 9")).run_id != TINY.run_id
    snapshots = parse(changed("snapshot_every = 0", "snapshot_every = 100"))
    assert snapshots.run_id not in (TINY.run_id, parse(changed("snapshot_every = 0", "snapshot_every = 50")).run_id)
    assert b'"format":4' in TINY.signed_bytes and b"snapshot_every" not in TINY.signed_bytes
    assert b'"format":5' in snapshots.signed_bytes
    ids = {parse(changed('sums = "exact"', f'sums = "{sums}"')).run_id for sums in ("exact", "int8", "int4")}
    assert len(ids) == 3 and TINY.run_id in ids and b"sums" not in TINY.signed_bytes
    assert b'"format":7' in parse(changed('sums = "exact"', 'sums = "int4"')).signed_bytes
    assert "pipeline.sums must be exact or int8 or int4" in refusal(changed('sums = "exact"', 'sums = "int2"'))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("steps = 300", "stesp = 300", "unknown key stesp in [run]; did you mean steps?"),
        ("steps = 300", 'steps = "many"', 'run.steps must be a whole number from 1 to 10000000, not "many"'),
        ("steps = 300", "steps = 300.0", "run.steps must be a whole number from 1 to 10000000, not 300.0"),
        ("steps = 300", "steps = true", "run.steps must be a whole number from 1 to 10000000, not true"),
        ("steps = 300", "steps = 0", "run.steps must be a whole number from 1 to 10000000, not 0"),
        ("clip = 1.0", "clip = nan", "optimiser.clip must be a number from 0.000001 to 1000000, not nan"),
        ("betas = [0.9, 0.99]", "betas = [0.9]", "optimiser.betas must be a list of two numbers from 0 to 0.999999"),
        (
            "betas = [0.9, 0.99]",
            "betas = [0.9, 1.0]",
            "optimiser.betas must be a list of two numbers from 0 to 0.999999",
        ),
        ('decay = "cosine"', 'decay = "cosin"', 'optimiser.decay must be cosine or constant, not "cosin"'),
        ('name = "tiny"', 'name = "../x"', "run.name must be 1 to 64 letters, digits, dots, dashes and underscores"),
        (f'sha256 = "{"ab" * 32}"', 'sha256 = "abc"', 'data.sha256 must be 64 hexadecimal digits, not "abc"'),
        ("stages = 4", "stages = 5", "5 stages are more than 4 layers; at most one stage per layer"),
        (
            "stages = 4",
            "stages = 3",
            "4 layers cannot be divided equally among 3 stages; pipeline.stages may be 1, 2, 4",
        ),
        ("dim = 96", "dim = 100", "dim 100 must be a multiple of 2 × heads = 8"),
        ("sequences = 16", "sequences = [1]", "batch.sequences must be a whole number from 1 to 4096, not list"),
        ("[batch]", "[batches]", "unknown key or section batches; did you mean batch?"),
        (
            "format = 11",
            "format = 12",
            "format 12 is none that this version of ftnode reads, which are 2 to 11; update ftnode",
        ),
        ('author = ""', 'author = "me"', 'run.author must be a PeerId (12D3KooW…), not "me"'),
        ('join = "open"', 'join = "some"', 'membership.join must be open or listed or vouched, not "some"'),
        (
            "peers = []",
            'peers = ["me"]',
            'membership.peers has "me", and it may have PeerIds (12D3KooW…) alone',
        ),
        ("peers = []", 'peers = "me"', 'membership.peers must be a list of at most 4096 PeerIds (12D3KooW…), not "me"'),
        ("replicas = 2", "replicas = 0", "pipeline.replicas must be a whole number from 1 to 64, not 0"),
        ("replicas = 2", "replicas = 65", "pipeline.replicas must be a whole number from 1 to 64, not 65"),
        (
            'precision = "float32"',
            'precision = "bfloat16"',
            'model.precision must be float32 or float64, not "bfloat16"',
        ),
    ],
)
def test_refusals_name_the_line_and_what_is_allowed(old: str, new: str, says: str) -> None:
    text = changed(old, new)
    message = refusal(text)
    assert message.startswith(f"tiny.toml, line {line_of(text, new)}: {says}")


def test_snapshots_further_apart_than_what_may_be_lost_are_refused() -> None:
    text = changed("snapshot_every = 0", "snapshot_every = 100").replace("rollback_max = 0", "rollback_max = 99")
    assert "snapshots every 100 steps are too far apart to lose at most 99; at least as many, or 0" in refusal(text)
    assert parse(text.replace("rollback_max = 99", "rollback_max = 100")).recovery.rollback_max == 100


def test_what_needs_four_stages_is_refused_with_fewer() -> None:
    """Two of the first and two of the last block stages are four."""
    text = changed("stages = 4", "stages = 2").replace("\nswap = false\n", "\nswap = true\n")
    assert "swapped routes need 4 stages, not 2" in refusal(text)
    assert 'pipeline.swap must be true or false, not "yes"' in refusal(changed("swap = false", 'swap = "yes"'))


def test_shadows_take_a_tenth_of_the_bytes_at_most() -> None:
    """Four stages of 110,784 numbers in bfloat16 against all boundary tensors of the steps between them, by hand."""
    shadowed = replace(TINY, recovery=replace(TINY.recovery, shadow_every=3))
    assert shadowed.stage_parameters == 4 * 96**2 + 3 * 96 * 256 + 2 * 96 == 110784
    assert shadowed.shadow_bytes == 2 * 110784 and TINY.shadow_bytes == 0
    assert shadowed.shadow_every_min == 1
    small = replace(shadowed, batch=replace(TINY.batch, microbatches=2, sequences=2))
    step = 2 * 5 * 2 * small.boundary_bytes.forward
    assert 4 * small.shadow_bytes <= 0.1 * small.shadow_every_min * step < 4 * small.shadow_bytes + 0.1 * step
    text = render(small)
    assert (
        f"shadows every 3 steps take more than 10% of the bytes of these steps; at least {small.shadow_every_min}, or"
        in refusal(text)
    )
    assert parse(text.replace("shadow_every = 3", f"shadow_every = {small.shadow_every_min}"))
    eighths = replace(small, recovery=replace(small.recovery, shadow_encoding="int8"))
    assert eighths.shadow_bytes == pytest.approx(encoded_bytes(110784, "int8"), abs=4)
    assert encoded_bytes(110784, "bfloat16") == small.shadow_bytes
    head = 3 * 4 * TINY.head_parameters
    assert small.copies_bytes == (2 * small.shadow_bytes, 2 * head) and TINY.copies_bytes == (0, 2 * head)


def test_swapped_routes_need_two_microbatches() -> None:
    """Every other one takes them: of one, none does."""
    text = changed("swap = false", "swap = true").replace("\nmicrobatches = 8\n", "\nmicrobatches = 1\n", 1)
    message = refusal(text)
    assert f"line {line_of(text, 'microbatches = 1')}: swapped routes need 2 microbatches" in message


def test_copies_of_the_head_take_a_tenth_of_the_bytes_at_most() -> None:
    """Two copies of weights and both moments against all boundary tensors of the steps between them, by hand."""
    state = 3 * 4 * (256 * 96 + 96 * 256 + 96)
    step = 2 * 5 * 8 * TINY.boundary_bytes.forward
    assert TINY.head_parameters == 49248
    assert TINY.head_every == 1 and 2 * state <= 0.1 * step
    large = replace(TINY, model=replace(TINY.model, vocabulary=32000))
    every = large.head_every
    copies = 2 * 3 * 4 * large.head_parameters
    assert copies <= 0.1 * every * step < copies * every / (every - 1)
    assert replace(TINY, recovery=replace(TINY.recovery, head_every=7)).head_every == 7


def test_a_missing_key_is_named_with_its_section() -> None:
    text = changed("seed = 1", "")
    assert refusal(text).startswith(f"tiny.toml, line {line_of(text, '[run]')}: run.seed is missing")


def test_a_missing_section_is_named() -> None:
    assert "section [liveness] is missing" in refusal(changed("[liveness]", "").replace("lease_seconds = 10.0", ""))


def test_a_missing_format_is_said() -> None:
    assert "`format = 11` is missing" in refusal(changed("format = 11", ""))


def without(text: str, *keys: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.split(" = ")[0] not in keys)


def of_format(number: int) -> str:
    """The tiny manifest as it was written then."""
    return in_format(TEXT, number)


def test_earlier_formats_are_read_as_what_they_meant() -> None:
    assert parse(of_format(3)) == parse(of_format(4)) == parse(of_format(5)) == parse(of_format(6)) == TINY
    found = parse(of_format(2))
    assert (found.pipeline.replicas, found.model.precision) == (1, "float32")
    assert (found.run.author, found.membership) == ("", Membership(join="open", peers=(), revision=0))
    assert found == replace(TINY, pipeline=replace(TINY.pipeline, replicas=1))
    assert parse(render(found)) == found and "format = 11" in render(found)
    assert "run.seed is missing" in refusal(without(of_format(2), "seed"))


def test_a_format_has_no_keys_of_a_later_one_nor_lacks_its_own() -> None:
    early = of_format(2).replace("[pipeline]", "[pipeline]\nreplicas = 2")
    assert "pipeline.replicas came with format 3; set format = 11" in refusal(early)
    assert "run.author came with format 4" in refusal(of_format(3).replace("[run]", '[run]\nauthor = ""'))
    assert "recovery.snapshot_every came with format 5" in refusal(of_format(5).replace("format = 5", "format = 4"))
    assert "pipeline.boundary_gradients came with format 6" in refusal(
        of_format(5).replace("[pipeline]", '[pipeline]\nboundary_gradients = ""')
    )
    assert "pipeline.sums came with format 7" in refusal(
        of_format(6).replace("[pipeline]", '[pipeline]\nsums = "exact"')
    )
    assert "membership.join came with format 4" in refusal(of_format(3) + '\n[membership]\njoin = "open"\n')
    assert "pipeline.replicas is missing" in refusal(without(TEXT, "replicas"))
    assert "section [membership] is missing" in refusal(TEXT.partition("[membership]")[0])


def test_an_earlier_format_has_no_checks_and_their_share_makes_another_run() -> None:
    assert parse(of_format(10)) == TINY and settings(TINY).checks == 0.0
    assert "trust.checks came with format 11" in refusal(of_format(10) + "\n[trust]\nchecks = 0.1\n")
    some = replace(TINY, trust=Trust(checks=0.02))
    assert parse(render(some)) == some and settings(some).checks == 0.02
    assert some.run_id != TINY.run_id and some.slots(1) == TINY.slots(1) + 16
    assert "trust.checks must be a number from 0 to 1, not 1.5" in refusal(changed("checks = 0.0", "checks = 1.5"))


def test_a_list_of_nobody_is_refused() -> None:
    assert "nobody is listed; add the PeerIds of volunteers" in refusal(changed('join = "open"', 'join = "listed"'))


def test_who_may_join_is_signed_and_changes_no_run_id() -> None:
    listed = replace(TINY, membership=Membership(join="listed", peers=(PEER,), revision=1))
    assert parse(render(listed)) == listed
    assert listed.run_id == TINY.run_id and listed.signed_bytes != TINY.signed_bytes
    authored = replace(TINY, run=replace(TINY.run, author=PEER))
    assert authored.run_id != TINY.run_id, "another author cannot take a run over"


def test_all_of_a_float64_run_is_float64_unless_it_is_encoded() -> None:
    wide = parse(changed('precision = "float32"', 'precision = "float64"'))
    assert (TINY.boundary_encodings, wide.boundary_encodings) == (("float32",) * 2, ("float64",) * 2)
    assert wide.boundary_bytes.both == 2 * TINY.boundary_bytes.both
    assert wide.run_id != TINY.run_id and wide.slots(1) == TINY.slots(1)
    assert wide.head_every == TINY.head_every
    pairs = {
        ("float32", "float32"): ("float64", "float64"), ("bfloat16", ""): ("bfloat16", "bfloat16"),
        ("float32", "int8"): ("float64", "int8"), ("int4", "float32"): ("int4", "float64"),
    }  # fmt: skip
    for said, meant in pairs.items():
        assert replace(encoded(*said), model=wide.model).boundary_encodings == meant


def test_more_paths_than_a_message_holds_are_refused() -> None:
    large = replace(
        TINY,
        model=replace(TINY.model, layers=64),
        pipeline=replace(TINY.pipeline, stages=64),
        batch=replace(TINY.batch, microbatches=256),
    )
    assert "at most 181" in refusal(render(large))
    assert parse(render(replace(large, batch=replace(large.batch, microbatches=181))))


def test_same_key_names_in_two_sections_are_told_apart() -> None:
    """batch.microbatches and evaluation.microbatches: the line is the second's."""
    text = TEXT[: TEXT.rindex("microbatches")] + "microbatches = -1\n"
    assert refusal(text).startswith(f"tiny.toml, line {line_of(text, 'microbatches = -1')}: evaluation.microbatches")


def test_dotted_keys_and_inline_tables_have_lines_too() -> None:
    head, rest = TEXT.split("[run]\n")
    rest = rest[rest.index("[model]") :]
    dotted = head + 'run.name = "x"\nrun.seed = -1\nrun.steps = 3\n\n' + rest
    assert refusal(dotted).startswith(f"tiny.toml, line {line_of(dotted, 'run.seed = -1')}: run.seed")
    inline = head + 'run = {name = "x", seed = -1, steps = 3}\n\n' + rest
    assert refusal(inline).startswith(
        f"tiny.toml, line {inline.splitlines().index(inline[len(head) :].splitlines()[0]) + 1}:"
    )


def test_broken_toml_says_where() -> None:
    assert "is not TOML" in refusal("format = \n") and "line 1" in refusal("format = \n")


def test_a_boundary_tensor_has_a_largest_size() -> None:
    text = changed("context = 64", "context = 131072").replace("sequences = 16", "sequences = 4096")
    assert "lower batch.sequences or model.context" in refusal(text)


def test_settings_take_the_manifest_s_numbers() -> None:
    found = settings(TINY)
    assert (found.run, found.stages, found.steps, found.microbatches) == (TINY.run_id, 4, 300, 8)
    assert found.replicas == 2
    assert (found.lease_seconds, found.minority_wait_seconds, found.ends) == (10.0, 60.0, "copy")


def test_boundary_bytes() -> None:
    """Rows of 96 numbers have three blocks of 32, each with a scale of two bytes."""
    full = 16 * 64 * 96 * 4
    assert TINY.boundary_bytes == BoundaryBytes(full, full)
    assert encoded("bfloat16").boundary_bytes == BoundaryBytes(full // 2, full // 2)
    scales = 16 * 64 * 3 * 2
    mixed = encoded("int4", "int8").boundary_bytes
    assert mixed == BoundaryBytes(scales + full // 8, scales + full // 4, scales, scales)
    assert (mixed.largest, mixed.both) == (scales + full // 4, 2 * scales + full // 8 + full // 4)
    assert (mixed.of(Direction.FORWARD), mixed.of(Direction.BACKWARD)) == (mixed.forward, mixed.backward)
    assert encoded("bfloat16", "int8").boundary_bytes.largest == full // 2


def encoded(forward: str, backward: str = "") -> Manifest:
    return replace(TINY, pipeline=replace(TINY.pipeline, boundary=forward, boundary_gradients=backward))


def test_encodings_that_came_later_need_their_format() -> None:
    text = render(encoded("int8", "float32"))
    assert parse(text) == encoded("int8", "float32")
    early = in_format(text, 5)
    assert 'pipeline.boundary = "int8" came with format 6; set format = 11' in refusal(early)
    assert "pipeline.boundary must be float32 or bfloat16 or int8 or int4" in refusal(text.replace("int8", "int3"))


def test_a_run_of_format_5_goes_on_as_before() -> None:
    """Ids and signed bytes as the last version that wrote format 5 had them, and the same tensors."""
    halved = encoded("bfloat16")
    kept = replace(TINY, recovery=replace(TINY.recovery, snapshot_every=5))
    wide = replace(TINY, model=replace(TINY.model, precision="float64"))
    for found, run_id, signed, size in (
        (TINY, "d53b3ab5d0d75b6e6d7a8c94d16cbd9f", "611dbe245a38707b7857b13c5aa147c4", 4),
        (halved, "cbcc62a4882c37de72ad17208cd8cf73", "42810a1a9060fe0f4055628f0bfe212e", 2),
        (kept, "5a6bc285be64b361d963c9346e6f4eb8", "6338d340c9daa22725f82ecb410b558c", 4),
        (wide, "70c282b23a8da198293e886b0bfb8029", "9e8376c38b03aafd75664db59da234da", 8),
    ):
        text = in_format(render(found), 5)
        assert parse(text) == found and parse(text).run_id == run_id
        assert blake2b(found.signed_bytes, digest_size=16).hexdigest() == signed
        assert found.boundary_bytes == BoundaryBytes(16 * 64 * 96 * size, 16 * 64 * 96 * size)


def test_a_run_of_format_6_goes_on_as_before() -> None:
    """Ids and signed bytes as the last version that wrote format 6 had them, and the same tensors."""
    muon = replace(TINY, optimiser=replace(TINY.optimiser, kind="muon"))
    for found, run_id, signed in (
        (encoded("int8"), "928f3be072ea0f2335d48253f56486c9", "b5dbe6d5ee6f7848dd53aa2da7975857"),
        (encoded("int4", "bfloat16"), "2cbb74e6c43314fae5d053f567632d26", "9a77ddc558ae89720cbd57a87c2784c0"),
        (muon, "8e84a77d16bf5f6ff9d487d197d2a527", "54d144a2fbb80adad5e30f4f11a4a670"),
    ):
        text = in_format(render(found), 6)
        assert parse(text) == found and parse(text).run_id == run_id
        assert blake2b(found.signed_bytes, digest_size=16).hexdigest() == signed


def test_what_is_new_in_format_7_counts_in_the_run_id() -> None:
    narrow = replace(TINY, model=replace(TINY.model, subspace=32))
    summed = replace(TINY, pipeline=replace(TINY.pipeline, sums="int8"))
    assert b"subspace" not in TINY.signed_bytes and b'"sums"' not in TINY.signed_bytes
    for found in (narrow, summed):
        assert b'"format":7' in found.signed_bytes and parse(render(found)) == found
    assert len({found.run_id for found in (TINY, narrow, summed)}) == 3
    assert parse(in_format(render(narrow), 6)) == parse(in_format(render(summed), 6)) == TINY


def test_a_format_6_has_no_subspace() -> None:
    early = of_format(6).replace("[model]", "[model]\nsubspace = 32")
    assert "model.subspace came with format 7; set format = 11" in refusal(early)
    assert "model.subspace is missing" in refusal(of_format(6).replace("format = 6", "format = 7"))


def test_a_subspace_is_less_than_the_whole_and_cut_in_blocks() -> None:
    whole = changed("subspace = 0", "subspace = 96")
    assert refusal(whole).startswith(
        f"tiny.toml, line {line_of(whole, 'subspace = 96')}: a subspace of 96 coordinates leaves none of dim 96"
    )
    odd = replace(encoded("int8"), model=replace(TINY.model, subspace=24))
    says = "blocks of a row of 24 numbers would be of 8; model.subspace must be a multiple of 16"
    assert says in refusal(render(odd))
    assert parse(changed("subspace = 0", "subspace = 24")).model.stream == 24


def test_what_travels_in_a_subspace() -> None:
    """Forward 32 numbers of each token and the token in two bytes, back the numbers alone."""
    rows = TINY.batch.sequences * TINY.model.context
    narrow = replace(TINY, model=replace(TINY.model, subspace=32))
    sizes = BoundaryBytes(rows * (4 * 32 + 2), rows * 4 * 32, forward_tokens=2 * rows, vocabulary=256)
    assert narrow.boundary_bytes == sizes
    large = replace(narrow, model=replace(narrow.model, vocabulary=65_537))
    assert large.boundary_bytes.forward == rows * (4 * 32 + 4)


def test_what_is_new_in_format_6_counts_in_the_run_id() -> None:
    assert b'"format":6' in encoded("int8").signed_bytes
    assert b'"boundary_gradients":"int8"' in encoded("float32", "int8").signed_bytes
    pairs = (("int8", ""), ("int8", "int4"), ("int4", ""), ("float32", "int8"), ("float32", ""))
    assert len({encoded(*pair).run_id for pair in pairs}) == len(pairs)


def test_blocks_that_would_hardly_save_are_refused() -> None:
    odd = replace(encoded("int8"), model=replace(TINY.model, dim=104))
    assert "blocks of a row of 104 numbers would be of 8; model.dim must be a multiple of 16" in refusal(render(odd))
    gradients = replace(odd, pipeline=replace(odd.pipeline, boundary="float32", boundary_gradients="int4"))
    text = render(gradients)
    line = line_of(text, 'boundary_gradients = "int4"')
    assert refusal(text).startswith(f"tiny.toml, line {line}: int4 has a scale")


def test_slots_grow_with_what_is_held() -> None:
    assert TINY.slots(2) > TINY.slots(1) > 4 * TINY.batch.microbatches


@pytest.mark.parametrize(("stages", "layers"), [(1, 4), (2, 4), (3, 3), (4, 4), (5, 5), (6, 6), (8, 8)])
def test_any_number_of_stages_fits_a_preset(stages: int, layers: int) -> None:
    manifest = adapt(TINY, sha256="0" * 64, stages=stages, steps=40)
    assert manifest.model.layers == layers
    assert parse(render(manifest)).optimiser.warmup_steps == 4


def test_manifests_are_values() -> None:
    assert isinstance(hash(TINY), int) and isinstance(TINY, Manifest)


@pytest.mark.parametrize(
    "keys",
    [{}, {"subspace": 16}, {"kv_heads": 1, "head_dim": 20, "qkv_bias": True}, {"tied": True, "kv_heads": 2}],
    ids=str,
)
@pytest.mark.parametrize("name", PRESETS)
def test_the_state_of_the_largest_stage_is_what_the_model_says(name: str, keys: dict[str, Any]) -> None:
    manifest, stages = PRESETS[name], range(PRESETS[name].pipeline.stages + 1)
    manifest = replace(manifest, model=replace(manifest.model, **keys))
    config = ModelConfig.of(manifest.model)
    assert manifest.stage_parameters == config.stage_parameters(manifest.pipeline.stages, 1)
    assert manifest.head_parameters == config.head_parameters
    largest = max(config.stage_parameters(manifest.pipeline.stages, stage) for stage in stages)
    assert settings(manifest).state_bytes == 3 * 4 * largest
