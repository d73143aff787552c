"""How many replicas a load needs: the largest ask of all signals; up at once, down after a window; never on missing data.

Pure: (spec, samples, history, now) → Decision, and `remember` makes the next history of it. What signals ask for is in
`autoscale_asks`, what can be believed in `autoscale_trust`, the window and the rates in `autoscale_history`. The same function runs
in the operator and in `benchmarks/autoscale_replay`. Called by `scaling`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from pagemill_operator.autoscale_asks import SignalAsk, asks, count
from pagemill_operator.autoscale_history import Ask, Change, History
from pagemill_operator.autoscale_trust import OLDEST, is_stale, sound
from pagemill_operator.signals import Samples
from pagemill_operator.spec_scaling import Autoscaling

__all__ = ["Ask", "Change", "Decision", "History", "SignalAsk", "decide", "remember"]

_FEW = 3


@dataclass(frozen=True, slots=True)
class Decision:
    """`desired` is what should be; who is in mode Recommend does not act on it."""

    desired: int
    decision: Literal["Up", "Down", "Hold"]
    rule: str  # one CamelCase word: which rule decided ("WaitingRequests", "MissingSignals", "StabilizationWindow", …)
    reason: str  # a sentence: inputs, rule, and what holds it back
    signals: tuple[SignalAsk, ...] = ()
    active: bool = True  # False: it can't scale on what it knows; `rule` and `reason` say why (ScalingActive=False)
    asked: int | None = None  # what the window remembers of this look, before bounds and rates; None: `desired`
    coming: bool = False  # replicas were on their way


def decide(spec: Autoscaling, samples: Samples, history: History, now: datetime) -> Decision:
    """One decision."""
    current = history.current
    if current < spec.min_replicas:
        return Decision(spec.min_replicas, "Up", "BelowMinimum", f"{current} is below minReplicas {spec.min_replicas}.")
    if current > spec.max_replicas:
        return Decision(
            spec.max_replicas, "Down", "AboveMaximum", f"{current} is above maxReplicas {spec.max_replicas}."
        )
    if is_stale(samples, now):
        return _blind(current, "StaleSignals", f"the last look is not within {OLDEST.seconds} s of now")
    if current == 0:
        return _asleep(samples)
    if samples.doubtful:
        return _blind(current, "DoubtfulSignals", _named(samples.doubtful))
    return _by_signals(spec, sound(samples), history, now)


def remember(spec: Autoscaling, history: History, decision: Decision, acted: bool, now: datetime) -> History:
    """The next history. `acted`: replicas are now `decision.desired`."""
    asked = decision.desired if decision.asked is None else decision.asked
    current = decision.desired if acted else history.current
    return history.then(asked, current, decision.coming, _window(spec), now)


def _asleep(samples: Samples) -> Decision:
    """At zero only the gateway knows of a load: whatever else is doubtful doesn't matter."""
    if samples.held is None:
        return _blind(0, "GatewayUnreachable", "no gateway says whether requests are held for a replica")
    signals = (SignalAsk("heldRequests", f"{samples.held} held at the gateway", min(1, samples.held)),)
    if samples.held:
        return Decision(1, "Up", "Wake", f"{samples.held} held at the gateway wake it.", signals)
    return Decision(0, "Hold", "Asleep", "no request is held at the gateway, and none is running.", signals)


def _by_signals(spec: Autoscaling, samples: Samples, history: History, now: datetime) -> Decision:
    current, coming = history.current, _coming(samples, history, now)
    if not (samples.replicas or samples.missing or coming):
        return _blind(current, "NoReplicas", "no replica serves and none is on its way, so nothing is measured")
    signals = asks(spec.targets, samples, current, settling=coming > 0 or history.just_came(now))
    most = max(signals, key=lambda ask: ask.desired)
    look = _Look(current, most, signals, coming)
    unknown = _unknown(samples)
    if most.desired > current:
        return _up(spec, look, history, now, unknown)
    if unknown:
        return look.blind(*unknown)
    return _down(spec, look, history, now)


@dataclass(frozen=True, slots=True)
class _Look:
    """What all signals say, for the rules that follow."""

    current: int
    most: SignalAsk
    signals: tuple[SignalAsk, ...]
    coming: int

    @property
    def asked(self) -> int:
        """What is on its way isn't idle, so it is never asked for less than one replica while one comes."""
        return max(self.most.desired, min(1, self.coming))

    def decided(self, desired: int, rule: str, held_back: str) -> Decision:
        word: Literal["Up", "Down", "Hold"] = (
            "Up" if desired > self.current else "Down" if desired < self.current else "Hold"
        )
        reason = f"{self.most.words}{held_back}."
        return Decision(desired, word, rule, reason, self.signals, asked=self.asked, coming=self.coming > 0)

    def blind(self, rule: str, why: str) -> Decision:
        """What there is of data is too little to go down on: the window remembers it as an ask for what there is."""
        reason = f"{why}; it stays at {self.current}, for what is known ({self.most.words}) may be too little."
        asked = max(self.asked, self.current)
        return Decision(self.current, "Hold", rule, reason, self.signals, False, asked, self.coming > 0)


def _up(spec: Autoscaling, look: _Look, history: History, now: datetime, unknown: tuple[str, str] | None) -> Decision:
    """At once, as far as the bound and the rate let it. Partial data is too little, never too much, so it may ask for more."""
    wanted, current = min(look.most.desired, spec.max_replicas), look.current
    rate = spec.scale_up.pods_per_minute
    room = wanted - current if rate is None else max(0, rate - history.added(now))
    desired = min(wanted, current + room)
    rule, but = look.most.name[0].upper() + look.most.name[1:], f"; there are {current}"
    if desired < wanted:
        but += f", and scaleUp.podsPerMinute {rate} allows {desired} now"
    elif desired < look.most.desired:
        but += f", and maxReplicas is {spec.max_replicas}"
    if desired == current:
        rule = "ScaleUpRate" if desired < wanted else "AtMaximum"
        return look.blind(*unknown) if unknown else look.decided(current, rule, but)
    return look.decided(desired, rule, f"{but}; it may be more: {unknown[1]}" if unknown else but)


def _down(spec: Autoscaling, look: _Look, history: History, now: datetime) -> Decision:
    """Only to what is the most that was asked for in the whole window, and no faster than the rate."""
    current, floor, window = look.current, spec.min_replicas, _window(spec)
    if look.coming:
        return look.decided(current, "LoadingReplicas", f"; {count(look.coming)} on the way, and nobody goes meanwhile")
    if look.most.desired == current:
        return look.decided(current, "Steady", ", which is what there is")
    if current == floor:
        return look.decided(current, "AtMinimum", f"; minReplicas is {floor}")
    seconds = spec.scale_down.stabilization_seconds
    seen = history.seen(now)
    if seen < window:
        but = f"; asks are known for {seen.total_seconds():.0f} s of scaleDown.stabilizationSeconds {seconds}"
        return look.decided(current, "StabilizationWindow", but)
    largest = history.largest(window, now)
    wanted = max(look.most.desired, largest.desired if largest else 0, floor)
    if largest and wanted >= current:
        ago = (now - largest.time).total_seconds()
        but = f"; {largest.desired} were asked for {ago:.0f} s ago, within scaleDown.stabilizationSeconds {seconds}"
        return look.decided(current, "StabilizationWindow", but)
    rate = spec.scale_down.pods_per_minute
    desired = wanted if rate is None else max(wanted, current - max(0, rate - history.removed(now)))
    if desired == current:
        return look.decided(
            current, "ScaleDownRate", f"; scaleDown.podsPerMinute {rate} were removed in the last minute"
        )
    but = f"; nothing has asked for more than {wanted} for {seconds} s"
    but += f", and scaleDown.podsPerMinute {rate} allows {desired} now" if desired > wanted else ""
    return look.decided(desired, "LessAsked" if desired else "Idle", but)


def _unknown(samples: Samples) -> tuple[str, str] | None:
    """What isn't known of a load that is at least what is known: a rule and its words."""
    if samples.missing:
        return "MissingSignals", _named(samples.missing)
    if samples.held is None:
        return "GatewayUnreachable", "no gateway says whether requests are held for a replica"
    return None


def _coming(samples: Samples, history: History, now: datetime) -> int:
    """Replicas on their way: those that load, and those asked for within the last minute whose pods nobody has seen yet."""
    unseen = history.current - len(samples.replicas) - len(samples.missing)
    return max(samples.loading, min(unseen, history.added(now)))


def _blind(current: int, rule: str, why: str) -> Decision:
    return Decision(current, "Hold", rule, f"{why}; it stays at {current}.", active=False)


def _window(spec: Autoscaling) -> timedelta:
    return timedelta(seconds=spec.scale_down.stabilization_seconds)


def _named(problems: tuple[str, ...]) -> str:
    """The first few of what may be one line for each of many pods."""
    more = len(problems) - _FEW
    return "; ".join(problems[:_FEW]) + (f"; and {more} more" if more > 0 else "")
