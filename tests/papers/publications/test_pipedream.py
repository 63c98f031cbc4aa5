from papers.publications.pipedream import CommunicatedStage, bytes_per_sample


def test_replicas_send_gradients_and_cuts_send_both_ways():
    assert bytes_per_sample([CommunicatedStage(300, replicas=3)], minibatch=4) == 100
    assert bytes_per_sample([CommunicatedStage(300, output_bytes=7), CommunicatedStage(300)], minibatch=4) == 14
