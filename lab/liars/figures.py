"""What a kind of lie came to, F1 over the kinds, and the page's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ftnode.lab.liars.ground import ONLY_HOLDER, USUAL, WITHOUT_SHADOW, Ground, Setting
from ftnode.lab.liars.kinds import KINDS, Kind
from ftnode.lab.liars.swarm import final

PREVENTED, FOUND, OPEN = "prevented", "found", "not defended"
LOSS_MAX: Final = 1.01
"""Of the loss without the lie: what a lie may cost that counts as prevented."""
TOKENS_MIN: Final = 0.9
"""Of the rate before, for the same; the machine's own noise is some hundredths."""
UNCHECKED: Final = Setting(checks=0).name
UNSHADOWED: Final = Ground(WITHOUT_SHADOW).name
UNDEFENDED: Final = (UNCHECKED, UNSHADOWED)
"""Where what is to find a liar was left out."""
ALL_KINDS: Final = "usual and only holder"
ROW: Final = ("kind", "outcome", "steps_until_found", "honest_removed", "loss_ratio", "tokens_ratio")


def row(measured: Mapping[str, Any], without: Mapping[str, float]) -> dict[str, Any]:
    """One of real processes. `without`: losses by step of a run without a lie."""
    spoilt, true = final(measured["losses"], measured["last"]), final(without, measured["last"])
    tokens = measured["during"] / measured["before"] if measured["before"] else None
    found, removed = measured["found_after"], measured["removed"]
    loss = None if measured["stopped"] or spoilt is None or true is None else round(spoilt / true, 4)
    return {
        "kind": measured["kind"],
        "outcome": outcome(found, removed, loss, tokens),
        "steps_until_found": found,
        "honest_removed": removed,
        "loss_ratio": loss,
        "tokens_ratio": None if tokens is None else round(tokens, 3),
    }


def outcome(found: float | None, removed: float, loss: float | None, tokens: float | None) -> str:
    """Found: all liars went. Prevented: they stayed, and it cost nothing: no loss, no time, and nobody honest."""
    if found is not None:
        return FOUND
    harmless = loss is not None and loss <= LOSS_MAX and tokens is not None and tokens >= TOKENS_MIN and not removed
    return PREVENTED if harmless else OPEN


def virtual_row(kind: Kind, seen: Mapping[str, Any]) -> dict[str, Any]:
    """Of a kind that only the virtual world has: it has no losses and no tokens."""
    found = seen["steps_until_found"] if seen["found"] == seen["worlds"] else None
    caught = FOUND if found is not None else PREVENTED if seen["harmless"] == seen["worlds"] else OPEN
    return {
        "kind": kind.name, "outcome": caught, "steps_until_found": found, "honest_removed": seen["honest_removed"],
        "loss_ratio": None, "tokens_ratio": None,
    }  # fmt: skip


def f1(rows: Sequence[Mapping[str, Any]]) -> float:
    """2 TP / (2 TP + FP + FN), as SENTINEL counts workers: a true positive is a kind whose liars went, a false negative
    one that is not defended, a false positive each honest member that went. A lie that is prevented leaves nobody to be
    found, and counts in neither."""
    found = sum(each["outcome"] == FOUND for each in rows)
    missed = sum(each["outcome"] == OPEN for each in rows)
    wronged = sum(each["honest_removed"] for each in rows)
    return round(2 * found / (2 * found + wronged + missed), 3) if found + missed + wronged else 1.0


def rows_by_setting(found: Mapping[str, Any]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """All that there are. The first one is the usual one, whose rows stand in `kinds`."""
    return {name: rows for name, rows in {USUAL.name: found["kinds"], **found["by_setting"]}.items() if rows}


def f1_by_setting(found: Mapping[str, Any]) -> dict[str, float]:
    """Of each setting alone, and of all kinds where some have an only holder."""
    rows = rows_by_setting(found)
    scores = {name: f1(each) for name, each in rows.items()}
    if {USUAL.name, ONLY_HOLDER} <= rows.keys():
        scores[ALL_KINDS] = f1([*rows[USUAL.name], *rows[ONLY_HOLDER]])
    return scores


def honest_row(measured: Mapping[str, Any], without: Mapping[str, float]) -> dict[str, Any]:
    """Of a swarm in which nobody lies, also the one that would."""
    made = row(measured, without)
    return {
        "steps": measured["last"] - measured["lied_from"],
        "accused": measured["accused"],
        "removed": made["honest_removed"] + (made["steps_until_found"] is not None),
        "loss_ratio": made["loss_ratio"],
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """As docs/reference/liars.md has it, with the kinds that have no figures."""
    return _table("kind", rows, [kind for kind in KINDS if not kind.layout.sole])


def only_holder_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of kinds whose liar holds its stage alone."""
    kinds = [kind for kind in KINDS if kind.layout.sole and kind.layout != WITHOUT_SHADOW]
    return _table("only holder", rows, kinds)


def unshadowed_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of those whose stage nobody else can see."""
    return _table("without shadows", rows, [kind for kind in KINDS if kind.layout == WITHOUT_SHADOW])


def _table(what: str, rows: Sequence[Mapping[str, Any]], kinds: Sequence[Kind]) -> str:
    measured = {each["kind"]: each for each in rows}
    lines = [
        f"| {what} | outcome | steps until found | honest removed | loss over that without it | tokens/s over before |",
        "|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        cells = ["not measured", "", "", "", ""]
        if each := measured.get(kind.name):
            cells = [
                each["outcome"], _spoken(each["steps_until_found"], "g"), f"{each['honest_removed']:g}",
                _spoken(each["loss_ratio"], ".3f"), _spoken(each["tokens_ratio"], ".2f"),
            ]  # fmt: skip
        lines.append(f"| `{kind.name}`: {kind.about} | {' | '.join(cells)} |")
    return "\n".join(lines)


def virtual_table(seen: Mapping[str, Mapping[str, Any]]) -> str:
    """Of the virtual world, as the page has it."""
    lines = ["| kind | worlds | found in | steps, mean | at most | honest removed |", "|---|---|---|---|---|---|"]
    for name, each in seen.items():
        steps = _spoken(each["steps_until_found"], ".0f"), _spoken(each["steps_at_most"], "g")
        lines.append(
            f"| `{name}` | {each['worlds']} | {each['found']} | {' | '.join(steps)} | {each['honest_removed']} |"
        )
    return "\n".join(lines)


def setting_table(by_setting: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Of other settings, as the page has it; an only holder, and runs without a defence, have tables of their own."""
    lines = ["| setting | kind | outcome | steps until found | honest removed | loss over that without it |"]
    lines.append("|---|---|---|---|---|---|")
    for name, rows in by_setting.items():
        for each in rows if name not in (*UNDEFENDED, ONLY_HOLDER) else ():
            cells = f"{_spoken(each['steps_until_found'], 'g')} | {each['honest_removed']:g}"
            loss = _spoken(each["loss_ratio"], ".3f")
            lines.append(f"| {name} | `{each['kind']}` | {each['outcome']} | {cells} | {loss} |")
    return "\n".join(lines)


def unchecked_table(found: Mapping[str, Any]) -> str:
    """What checks change, as the page has it."""
    with_them = {each["kind"]: each for each in found["kinds"]}
    lines = ["| kind | without checks | loss over that without it | with checks | loss |", "|---|---|---|---|---|"]
    for each in found["by_setting"].get(UNCHECKED, ()):
        cells = (_outcome_and_loss(one) for one in (each, with_them[each["kind"]]))
        lines.append(f"| `{each['kind']}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _outcome_and_loss(each: Mapping[str, Any]) -> str:
    after = "" if each["steps_until_found"] is None else f" after {each['steps_until_found']:g}"
    return f"{each['outcome']}{after} | {_spoken(each['loss_ratio'], '.3f')}"


def honest_table(honest: Mapping[str, Mapping[str, Any]]) -> str:
    """Of swarms in which nobody lies, as the page has it."""
    lines = ["| nobody lies | steps | accused | removed | loss over that of one volunteer |", "|---|---|---|---|---|"]
    for name, each in honest.items():
        cells = f"{each['steps']} | {each['accused']} | {each['removed']} | {_spoken(each['loss_ratio'], '.3f')}"
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def summary(found: Mapping[str, Any]) -> str:
    """The page's two lines on all of it."""
    rows = found["kinds"]
    counts = [sum(each["outcome"] == one for each in rows) for one in (PREVENTED, FOUND, OPEN)]
    checks = found.get("checks")
    cost = "" if not checks else (
        f"\nChecks of {USUAL.checks:g} cost {checks['tokens']:.1%} of tokens/s, {checks['bytes']:.1%} of bytes."
    )  # fmt: skip
    kinds = f"{len(rows)} kinds: {counts[0]} prevented, {counts[1]} found, {counts[2]} not defended"
    every = found["f1_by_setting"].get(ALL_KINDS)
    more = "" if every is None else f", and {every:g} with those of a stage's only holder"
    return f"**Of {kinds}.** F1: {found['f1']:g}{more}.{cost}"


def _spoken(number: float | None, how: str) -> str:
    return "" if number is None else f"{number:{how}}"
