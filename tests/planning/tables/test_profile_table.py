from pipetrain.planning.profile.profile import LoaderTime, MessageCpuTime, Profile, ProfiledLayer
from pipetrain.planning.tables.profile_table import profile_table

CONV, RELU = ProfiledLayer("conv", 0.001, 0.002, 4000, 16, 8000), ProfiledLayer("relu", 0.0005, 0.0, 0, 0, 0)


def test_a_table_has_a_line_for_each_layer_and_the_whole():
    provenance = {"model": "lenet5", "dataset": "mnist", "device": "cpu", "threads": 2, "microbatches": 4}
    reading = LoaderTime(0.0012, 0.0003)
    work = MessageCpuTime(0.0001, 4e-10)
    speeds = {"message_work": work, "update_bytes_per_s": 45e9}
    profile = Profile((CONV, RELU), ((0, 1),), 35, 2e9, provenance, reading=reading, **speeds)
    lines = profile_table(profile, "layers")
    assert lines == [
        "lenet5, mnist, minibatches of 35, in 4 microbatches, cpu, 2 threads, 2 layers",
        "layer        forward ms  backward ms  output  weights  activations",
        "    0  conv        1.00         2.00    4 kB     16 B         8 kB",
        "    1  relu        0.50         0.00       -        -            -",
        "  all              1.50         2.00       -     16 B         8 kB",
        "the first stage reads inputs for 1.20 ms, the last one targets for 0.30 ms",
        "one device takes 4.70 ms for a minibatch, 7,447 samples/s",
        "updates read and write weights at 45 GB/s",
        "two workers send each other 2 GB/s; each end of a message takes 0.10 ms of a core, and 0.40 ms for each MB",
    ]


def test_a_profile_from_elsewhere_says_what_is_known():
    lines = profile_table(Profile((CONV,) * 20, ()), "layers, in graph.txt")
    assert lines[0] == "20 layers"
    assert "  ...  12 more layers, in graph.txt" in lines
    assert lines[-1] == "one device takes 60.00 ms for a minibatch"
