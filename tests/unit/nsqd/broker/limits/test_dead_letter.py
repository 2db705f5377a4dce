"""Dead letters: where they go."""

from nsqd.broker.limits.dead_letter import find_dead_letter_name


def test_dead_letter_topics_have_valid_names() -> None:
    assert find_dead_letter_name("orders", ".dead") == "orders.dead"
    assert find_dead_letter_name("orders", "") is None
    assert find_dead_letter_name("x" * 59, ".dead") == "x" * 59 + ".dead"
    assert find_dead_letter_name("x" * 60, ".dead") is None
    assert find_dead_letter_name("orders#ephemeral", ".dead") is None
