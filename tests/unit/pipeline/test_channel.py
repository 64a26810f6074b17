"""The channel is bounded and ordered, and neither side waits for one that has ended."""

import threading

import pytest

from filmgate.pipeline.transfer.channel import Channel, ChannelClosed


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_items_come_out_in_the_order_they_went_in():
    channel = Channel(capacity=2)
    received = []
    writer = in_thread(lambda: [channel.put(n) for n in range(100)] and channel.finish())
    with pytest.raises(ChannelClosed):
        while True:
            received.append(channel.get())
    writer.join()
    assert received == list(range(100))


def test_after_finish_the_reader_gets_the_remaining_items():
    channel = Channel(capacity=2)
    channel.put("last")
    channel.finish()
    assert channel.get() == "last"
    with pytest.raises(ChannelClosed):
        channel.get()


def test_close_drops_the_remaining_items_and_ends_both_sides():
    channel = Channel(capacity=2)
    channel.put("dropped")
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.get()
    with pytest.raises(ChannelClosed):
        channel.put("refused")


@pytest.mark.parametrize("is_full", [True, False])
def test_close_wakes_a_waiting_thread(is_full):
    channel, ended = Channel(capacity=1), []
    if is_full:
        channel.put("fills the channel")

    def wait():
        try:
            channel.put("one more") if is_full else channel.get()
        except ChannelClosed:
            ended.append(True)

    waiting = in_thread(wait)
    channel.close()
    waiting.join(timeout=60)
    assert ended == [True]
