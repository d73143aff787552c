from benchmarks.engine_overhead import measure


def test_a_few_steps_are_measured() -> None:
    times = measure(sequences=3, context=20, steps=5, waiting=2)
    assert len(times) == 5
    assert times == sorted(times)
    assert times[0] > 0
