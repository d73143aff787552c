from pagemill_server.engine.step_model import Coefficients, StepModel
from pagemill_server.engine.tier_costs import MeasuredCosts


def costs() -> MeasuredCosts:
    return MeasuredCosts(StepModel(Coefficients(base=0.0, per_token=0.001, per_sequence=0.0, per_context_token=1e-6)))


def test_before_a_fetch_was_measured_one_is_tried() -> None:
    assert costs().fetch_pays(1000, num_tokens=1, context=0)


def test_what_takes_less_is_done() -> None:
    measured = costs()
    measured.observe(num_blocks=10, seconds=0.1)  # 10 ms a block, 1 ms a token
    assert measured.fetch_pays(3, num_tokens=48, context=0)
    assert not measured.fetch_pays(3, num_tokens=24, context=0)
    assert measured.fetch_pays(3, num_tokens=24, context=1000), "a token with much before it takes longer"


def test_the_past_is_forgotten() -> None:
    measured = costs()
    measured.observe(1, seconds=10.0)
    assert not measured.fetch_pays(1, num_tokens=100, context=0)
    for _ in range(30):
        measured.observe(1, seconds=0.001)
    assert measured.fetch_pays(1, num_tokens=100, context=0)
