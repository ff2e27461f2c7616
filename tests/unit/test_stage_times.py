"""The clock of a launch's stages."""

from exactbatch.batch.publishing.publish import StageTimes


def test_a_stage_lasts_until_the_next_and_adds_up():
    now = [10.0]
    times = StageTimes("prepare", clock=lambda: now[0])
    for stage, at in (("stage", 10.25), ("check", 12.0), ("stage", 12.5)):
        now[0] = at
        times.enter(stage)
    now[0] = 13.0
    assert list(times.milliseconds().items()) == [("prepare", 250), ("stage", 2250), ("check", 500)]
    now[0] = 14.0
    assert times.milliseconds()["stage"] == 3250
