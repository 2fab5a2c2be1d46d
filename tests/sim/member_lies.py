"""How a member lies in the virtual world, from one moment to another: kinds of lab/liars and lab/hostile that need no
real numbers. Each begins at once and gives what ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

from ftnode.lab.hostile import traitor
from ftnode.protocol.step.check import shown_of
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.types import Peer
from tests.sim.compute import Gradients, Tensor, as_made
from tests.sim.forking import Forking
from tests.sim.host import Host, as_it_is
from tests.sim.lying_world import LyingWorld

End = Callable[[], None]
Kind = Callable[[LyingWorld, Host, Random], End]
SCALES: Final = (1.0, 1.0, 0.0, 0.001, 1000.0)
SHARES: Final = (1.0, 1.0, 0.3)


def _sets(host: Host, **told: Any) -> End:
    """Attributes of the host, until they are what they are in an honest one."""
    for name, value in told.items():
        setattr(host, name, value)

    def end() -> None:
        for name, value in told.items():
            setattr(host, name, False if value is True else as_it_is if name == "lends" else None)

    return end


def _turned(share: float, chance: Random) -> Callable[[Gradients], Gradients]:
    def lie(gradients: Gradients) -> Gradients:
        return {visit: ~chain if chance.random() < share else chain for visit, chain in gradients.items()}

    return lie


# -- numbers


def gradients(world: LyingWorld, host: Host, chance: Random) -> End:
    """It gives something else to sums; and some of these say that whoever tells the same lie is right."""
    end = _sets(host, lies=_turned(chance.choice(SHARES), Random(chance.random())), agrees=chance.random() < 0.3)

    def over() -> None:
        end()
        host.agrees = False

    return over


def piece(world: LyingWorld, host: Host, chance: Random) -> End:
    """It gives out another sum of the piece that it adds up, and some of these show nobody what it made that of."""
    end = _sets(host, bends=_turned(1.0, chance))
    if chance.random() < 0.3:
        host.hides = lambda peer: True

    def over() -> None:
        end()
        host.hides = None

    return over


def passes_on(world: LyingWorld, host: Host, chance: Random) -> End:
    """Other activations than its visits give, or other gradients, in some or all visits."""
    way, turns, scale = chance.random() < 0.5, chance.random() < 0.3, chance.choice(SCALES)
    share, draws = chance.choice(SHARES), Random(chance.random())

    def lie(made: Tensor) -> Tensor:
        if made.gradient is not way or draws.random() >= share:
            return made
        return made._replace(chain=~made.chain, scale=scale, turned=turns and not way)

    host.compute.lies = lie

    def over() -> None:
        host.compute.lies = as_made

    return over


def lends(world: LyingWorld, host: Host, chance: Random) -> End:
    """Other weights than it works with, while others can show what they were worked with."""

    def lie(history: int) -> int:
        view, settings = host.view, world.settings
        if view is None:
            return history
        shown = (shown_of(view, (stage,), host.peer, settings) for stage in view.stages_of(host.peer))
        return ~history if all(shown) else history

    return _sets(host, lends=lie)


def copies(world: LyingWorld, host: Host, chance: Random) -> End:
    """It changes the copies that it keeps."""
    host.bend_copies(lambda weights: weights._replace(history=weights.history ^ 1))
    return lambda: None


# -- what it shows, and says of what it is shown


def hides(world: LyingWorld, host: Host, chance: Random) -> End:
    """It shows nobody, or not to one of its group, the parts that it made its piece of a sum of."""
    view = host.view
    stages = view.stages_of(host.peer) if view is not None else ()
    group = {peer for stage in stages for peer in view.holders[stage]} - {host.peer} if view is not None else ()
    deaf = chance.choice([None, *sorted(group)])
    return _sets(host, hides=lambda peer: deaf is None or peer == deaf)


def sees_no_parts(world: LyingWorld, host: Host, chance: Random) -> End:
    return _sets(host, sees_no_parts=True)


def accuses(world: LyingWorld, host: Host, chance: Random) -> End:
    """It says of whomever it checks that it lies."""
    return _sets(host, accuses=True)


def shows_others(world: LyingWorld, host: Host, chance: Random) -> End:
    """Other tensors than it made, or than it got, to who does others' visits again."""
    which = chance.choice([(True,), (False,), (True, False)])

    def shows(tensor: Tensor, own: bool, _to: Peer) -> Tensor:
        return tensor._replace(chain=~tensor.chain) if own in which else tensor

    return _sets(host, shows=shows)


def unsigned(world: LyingWorld, host: Host, chance: Random) -> End:
    """Tensors that somebody else seems to have signed."""
    world.seals.unsigned.add(host.peer)
    return lambda: world.seals.unsigned.discard(host.peer)


# -- ways of a core


def _goes(world: LyingWorld, host: Host, way: traitor.Way) -> End:
    ways = world.ways.setdefault(host.peer, [])
    ways.append(way)
    return lambda: ways.remove(way)


def core(world: LyingWorld, host: Host, chance: Random) -> End:
    """Idle, deaf, never Ready, poisoning, without votes, another sum, false accusations; or Ready without work."""
    names = ("idle", "deaf", "poisoning", "unready", "abstaining", "other_sum", "accusing", "unworked")
    name = chance.choice(names)
    if name == "accusing":
        return _goes(world, host, traitor.Accusing())
    if name == "unworked":
        return _goes(world, host, Unworked())
    return _goes(world, host, traitor.WAYS[name])


class Unworked(traitor.Unworked):
    """It works until it has seen what a Ready is."""

    def __call__(self, event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        return super().__call__(event, decide) if self._said is not None else self.watch(event, decide)


def forks(world: LyingWorld, host: Host, chance: Random) -> End:
    """It gives one microbatch to two holders of a stage, on two paths."""
    how = {name: chance.random() < 0.5 for name in ("whole", "meets")}
    return _goes(world, host, Forking(world, host, signs=chance.random() < 0.8, **how))


def judges_wrongly(world: LyingWorld, host: Host, chance: Random) -> End:
    """Asked for a verdict, it says the opposite, that it is so, that it is not, or nothing."""
    said = chance.choice(["opposite", True, False, None])

    def way(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        effects = list[fx.Effect]()
        for effect in decide(event):
            word = effect.message if isinstance(effect, fx.Send) else None
            if isinstance(effect, fx.Send) and isinstance(word, ms.Verdict):
                if said is None:
                    continue
                guilty = (not word.guilty if word.guilty is not None else None) if said == "opposite" else bool(said)
                effect = replace(effect, message=replace(word, guilty=guilty))
            effects.append(effect)
        return effects

    return _goes(world, host, way)


KINDS: Final[dict[str, Kind]] = {
    each.__name__: each
    for each in (
        gradients, piece, passes_on, lends, copies, hides, sees_no_parts, accuses, shows_others, unsigned, core, forks,
        judges_wrongly,
    )
}  # fmt: skip
