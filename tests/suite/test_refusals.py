"""A case that cannot run is refused before anything runs, in one line with the file, the key and the nearest name."""

import tomllib

import pytest

from hpcdl import suite
from hpcdl.aggregation.parts import cost
from hpcdl.aggregation.parts.traits import COLLECTIVES, offered, schemes
from hpcdl.cli import main
from hpcdl.suite import PROCESS_BYTES

from .conftest import CASES, text_of

REFUSED = r"""
[train]
agregation = "ring" | agregation: unknown key; did you mean 'aggregation'?
aggregation = "rign" | aggregation: unknown 'rign'; did you mean 'ring'?
backend = "cupy" | backend: CuPy is
ranks = "1,2" | ranks: must be int, or a list, [1,2], not '1,2'
compression = {name = "none", warmup_steps = 2} | compression: 'none' has no setting
compression = {name = "fp16", warmup_steps = -1} | compression: warmup_steps: must be at least 0
compression = "sign", training = "update_broadcast"
    | compression: Sign sends signs without a size, which 'update_broadcast' needs for its changes
compression = "top_k", training = "d_psgd"
    | compression: 'd_psgd' then needs its setting consensus_step, above 0 and at most 1:
compression = "qsgd", training = {name = "d_psgd", consensus_step = 0.1}
    | compression: the error of QSGD (variance up to 1.41 of the squared norm; accepted: 0.5) may exceed
compression = {name = "top_k", error_feedback = true}, training = {name = "d_psgd", consensus_step = 0.1}
    | compression: error_feedback: the copies that 'd_psgd' keeps already hold what is not sent
compression = {name = "top_k", density = 2.0}, aggregation = "bruck" | compression: density must be above 0
aggregation = {name = "tree", arty = 3} | unknown setting 'arty'; did you mean 'arity'?
aggregation = {name = "tree", arity = 0} | aggregation: arity = 0: a tree's node has at least
aggregation = {name = "tree", arity = true} | setting 'arity' must be int, not True
aggregation = {arity = 3} | must be a name or a table such as {name = "..."}
aggregation = 3 | aggregation: must be a name or a table such as {name = "..."}, not 3
optimizer = {name = "sgd", momentum = 1.5} | optimizer: momentum must be at least 0 and less
timeout_seconds = 0 | timeout_seconds: must be at least 1, not 0
learning_rate = -0.1 | learning_rate: must be at least 0, not -0.1
learning_rate = inf | learning_rate: inf is out of range
learning_rate = "-" | learning_rate: a train case needs it
ranks = true | ranks: must be int, not True
ful = true | ful: unknown key; did you mean 'full'?
full = "yes" | full: must be true, or a table of further values, not 'yes'
full = {rank = [4]} | full: rank: unknown key; did you mean 'ranks'?
ranks = [] | ranks: an empty list leaves no case
training = {name = "asynchronous", servers = []} | training: an empty list leaves no case
batch_per_rank = 8 | global_batch: give exactly one of global_batch and batch_per_rank
steps = "-" | epochs: give exactly one of epochs and steps
pruning = {sparsity = 1} | pruning: sparsity: must be more than 0 and less than 1, not 1
ranks = 4, mesh = {model = 2}, training = {name = "asynchronous", servers = 3}
    | training: servers: 3 on 2 ranks, at most 2 fit
ranks = 4, mesh = {model = 3}, training = "asynchronous" | mesh: 4 ranks do not fit model
ranks = 4, mesh = {model = 2, split = "hybrid"}, training = "sandblaster"
    | mesh: 'sandblaster' has one shard for each parameter, but every rank of a model group has all of conv1
quantization = {weights = 32} | quantization: weights: must be 2 to 16 bits, not 32
target_accuracy = 97 | target_accuracy: must be at most 1, not 97
ranks = 3, global_batch = 2 | global_batch: 2 is not divisible by ranks = 3; 3 and 3 are
sharpness = 2000 | sharpness: 2000 images, but digits has 1437
global_batch = 2000 | global_batch: 2000 images a step, but digits has 1437
dataset = {name = "synthetic", shape = [2, 2]} | dataset: synthetic: shape must be three
dataset = {name = "synthetic", images = 1000000000000000}
    | dataset: synthetic: images must be a whole number from 1 to
dataset = {name = "synthetic", test_images = 0} | dataset: synthetic has no test images
dataset = {name = "synthetic", shape = [2, 2, 3]}, model = "cifar_quick"
    | model: pool1: kernel 3x3 is larger than the padded image 2x2
dataset = {name = "synthetic", shape = [999, 999, 3], images = 1000000}, model = "nin", global_batch = 200000
    | global_batch: 100000 images a rank: needs at least
ranks = 1000000 | ranks: must be at most 131072
steps = "-", epochs = 1000000000.0 | epochs: are 22000000000 steps, and must be at most 10000000
training = {name = "layerwise", bucket_bytes = 1}
    | training: bucket_bytes: must be 0 (one bucket) or at least 1024, not 1
network = "gemini", flops = 1e-05, batch_per_rank = 1, global_batch = "-" | flops: the training would take
network = "gemini", flops = 1000000000.0, batch_per_rank = 1, global_batch = "-", jitter = 1e+18
    | jitter: must be at most 10
mesh = {data = 2, model = 2}, ranks = 6, global_batch = 60
    | mesh: 6 ranks do not fit data 2 model 2; data x model can be 1 x 6, 2 x 3, 3 x 2, 6 x 1
mesh = {modle = 2} | mesh: unknown setting 'modle'; did you mean 'model'?
mesh = {} | mesh: give data, the number of groups, model, their ranks, or pipeline, their stages
mesh = {model = 2, split = "modle"} | mesh: split: unknown 'modle'; did you mean 'model'?
mesh = {model = 2, exchange = "turns"} | mesh: exchange: 'turns' is for split = 'hybrid'
mesh = {model = 16, split = "space"}, ranks = 16 | mesh: conv1: 8 rows of outputs cannot be split among 16 ranks
mesh = {pipeline = 2, linear = "inputs"}, training = "pipeline"
    | mesh: linear: 'inputs' has no effect: layers of a pipeline are whole; leave it out
mesh = {data = 1, split = "space"}, model = "distbelief_speech", dataset = {name = "synthetic", shape = [11, 40, 1], classes = 8192}
    | mesh: split: 'space' splits this network as 'model' does; leave it out
training = {name = "pipeline", microbatches = 4}, mesh = {pipeline = 3}
    | mesh: 2 ranks do not fit pipeline 3; data x pipeline must be 2
training = {name = "pipeline", microbatches = 4}, mesh = {pipeline = 2, model = 2}, ranks = 4
    | mesh: model 2 pipeline 2: layers of a pipeline are not split; leave out model
training = {name = "pipeline", microbatches = 4}, mesh = {pipeline = 12}, ranks = 12
    | mesh: lenet5 has 7 layers, too few for 12 stages
training = {name = "pipeline", microbatches = 65}, mesh = {pipeline = 2}
    | training: microbatches: must be at most 64, the images of a batch, not 65
training = {name = "pipeline", microbatches = 9}, mesh = {pipeline = 2}, ranks = 4, shares = {weights = [7, 1]}
    | training: microbatches: must be at most 8, the images of a batch, not 9
training = {name = "pipeline", microbatches = 33}, mesh = "-"
    | training: microbatches: must be at most 32, the images of a batch, not 33
training = {name = "pipeline", microbatches = 4}, mesh = {pipeline = 2}, ranks = 6
    | global_batch: 64 is not divisible by the 3 workers among 6 ranks; 63 and 66 are
training = {name = "asynchronous", dedicated = true}, ranks = 4, global_batch = 96, straggler = {rank = 3, probability = 0.5, seconds = 0.1}
    | straggler: rank: rank 3 has no batches to pause before; these have: 0 to 2
training = {name = "sandblaster", servers = 1}, ranks = 4, global_batch = 96, straggler = {by_rank = [0, 0.1, 0, 0]}
    | straggler: rank: rank 1 has no batches to pause before; these have: 2 to 3
training = "asynchronous", ranks = 4, global_batch = 96, failure = {rank = 2, step = 12}
    | failure: step: 12, but no rank of this training takes more than 12 steps
training = {name = "sandblaster", servers = 1}, ranks = 4, global_batch = 96, failure = {rank = 2, step = 48}
    | failure: step: 48, but no rank of this training takes more than 48 steps
training = {name = "diloco", period = 16, delay = 5}, steps = 20
    | training: period: the first outer step is after 21 steps, but training has 20
training = "sandblaster", optimizer = {name = "sgd", momentum = 0.9}
    | optimizer: this key cannot be used with training 'sandblaster': it has its own optimizer
shares = {weights = [1, 1, 1]} | shares: weights: 3 of them, but 2 to share a batch
shares = {weights = [3, 1]}, training = {name = "asynchronous", dedicated = true}
    | shares: weights: 2 of them, but 1 to share
shares = {weights = [1, 99]} | shares: weights: with 1:99 rank 0 would receive 0 of 64 images
shares = {weights = 3} | shares: setting 'weights' must be tuple[int, ...], not 3
training = {name = "parameter_averaging", period = 4, post_local = true}, schedule = "constant", steps = 20
    | training: post_local: the learning rate never falls; give local_from, the first local step
training = {name = "parameter_averaging", period = 4, post_local = true}, schedule = {name = "step", at = [0.99]}, steps = 20
    | training: post_local: the learning rate never falls
training = {name = "parameter_averaging", period = 4, post_local = true}, schedule = {name = "constant", warmup = 0.5, warmup_from = 0.1}, steps = 20
    | training: post_local: the learning
training = {name = "parameter_averaging", period = 4, post_local = true}, schedule = "polynomial", steps = 20
    | training: post_local: the learning rate always falls
training = {name = "parameter_averaging", period = 4, local_from = 20}, schedule = "constant", steps = 20
    | training: local_from: 20, but training has 20 steps: none would be local
straggler = {rank = 2, factor = 5} | straggler: rank 2 is not among the 2 ranks of the case
straggler = {rank = "every", factor = 5} | straggler: rank: must be a number or 'all', not 'every'
straggler = {rank = 1, factor = 0.5} | straggler: factor: must be from 1 to 10000, not 0.5
straggler = {factor = 5} | straggler: needs a setting 'rank'
straggler = {rank = 1} | straggler: give a factor of more than 1, or seconds of its pauses
straggler = 5 | straggler: must be a table, as {key = value}, not 5
training = "asynchronous", failure = {rank = [], step = 1} | failure: rank: must be a number, or a list of some, not ()
training = "asynchronous", failure = {rank = [1, 0], step = 5}
    | failure: rank: 'asynchronous' does not go on without rank 0
network = "gemini" | network: a simulated case needs exactly one of device, flops, times
training = {name = "asynchronous", dedicated = true}, ranks = 4, global_batch = 12, failure = {rank = 3, step = 1}
    | without rank 3; these may fail: 1 to 2
training = {name = "sandblaster", servers = 2}, ranks = 4, global_batch = 12, failure = {rank = 3, step = 1}
    | without rank 3; with such settings none may fail
[pairwise]
timeout_seconds = nan | timeout_seconds: nan is out of range
ranks = 3 | ranks: a pair has 2, not 3; pattern = 'all_pairs' or 'bisection' takes more
ranks = 3, pattern = "bisection" | ranks: 3 ranks have no two equal halves
kind = 3 | kind: must be a word, not 3
kind = "-" | kind: every case needs one of:
[collective]
message_bytes = 6 | message_bytes: 6 is not a multiple of float32's 4 bytes
message_bytes = 1125899906842624 | message_bytes: 1125899906842624 on a rank: needs at least 4503599.
collective = "alltoall" | collective: unknown 'alltoall'; did you mean 'alltoallv'?
collective = "all_to_all", aggregation = "direct", ranks = 3
    | message_bytes: all_to_all: 16 elements cannot be cut into 3 equal parts
message_bytes = "-" | message_bytes: a collective case needs it
counts = "zipf" | counts: allreduce has parts of one length; only alltoallv has counts
collective = "alltoallv" | aggregation: 'ring' has no alltoallv; these have: bruck, direct, hierarchical, native, pairwise
collective = "alltoallv", aggregation = "direct", message_bytes = "-"
    | counts: needs message_bytes, the bytes that each rank sends
collective = "alltoallv", aggregation = "direct", counts = {exponent = 2.0}
    | counts: must be a name or a table such as {name = "..."}, not {'exponent': 2.0}
collective = "alltoallv", aggregation = "direct", counts = {name = "uniform", exponent = 2.0}
    | counts: unknown setting 'exponent'; it has none
collective = "alltoallv", aggregation = "direct", counts = {name = "zipf", exponent = -1.0}
    | counts: exponent and seed must be at least 0, not -1.0 and 0
collective = "alltoallv", aggregation = "direct", counts = {name = "file", path = "no/such.csv"}, message_bytes = "-"
    | counts: no/such.csv: cannot be read: No such file or directory
collective = "alltoallv", aggregation = "direct", counts = {name = "file", path = "no/such.csv"}
    | counts: the file states all bytes; leave message_bytes out
collective = "alltoallv", aggregation = "direct", counts = {name = "file", path = "a.csv", scale = 0}, message_bytes = "-"
    | counts: scale must be from 1 to 2147483647, not 0
collective = "alltoallv", aggregation = "direct", ranks = 2000 | counts: 2000 ranks have too many blocks; an alltoallv has
collective = "alltoallv", aggregation = "direct", ranks = 4, message_bytes = 8589934592
    | counts: a rank sends or receives 2147483648 elements
collective = "alltoallv", aggregation = {name = "hierarchical", inner = "ring"} | aggregation: unknown setting 'inner'
repetitions = 9223372036854775807 | repetitions: must be at most 1000000, not 9223372036854775807
network = "gemini", ranks = 100000, ranks_per_host = 7, aggregation = "direct"
    | ranks: 100000 ranks may send 2e+10 messages; at most 1e+09 are simulated
network = "gemini", ranks = 100000, aggregation = "auto"
    | ranks: 100000 ranks may send 2e+10 messages; at most 1e+09 are simulated
network = "titan", ranks = 20000 | ranks: 20000 hosts are more than the topology's 19200
network = "gemini", topology = "torus" | topology:
network = "gemini", topology = {name = "torus", sides = [2, 0]} | topology: sides: must be numbers of at least 1
network = "gemini", topology = {name = "fat_tree", hosts = [4, 2]}, ranks = 9
    | topology: 9 hosts are more than the topology's 8
network = "gemini", topology = {name = "fat_tree", hosts = [4, 2], oversubscription = [0.5]}
    | topology: oversubscription:
network = "gemini", topology = {name = "fat_tree", hosts = [4, 2], placement = "cycle"}
    | placement: must be block, cyclic, random, not 'cycle'
network = "gemini", topology = {name = "fat_tree", hosts = [4, 2], background = 1.0} | topology: background:
network = "gemini", topology = {name = "fat_tree", hosts = [4, 2], slow = {"switch 0.1 u" = 0.5}}
    | did you mean 'switch 0.1 up'?
network = "gemini", topology = {name = "fat_tree", hosts = [4, 2], slow = {"switch 0.1 up" = 2}} | from 0 to 1, not 2
network = "gemini", ranks = 8, topology = {name = "fat_tree", hosts = [4, 2], slow = {"switch 0.1 up" = 0}}
    | slow: no route from host 4 to 0, host 4 to 1, host 4 to 2 and 13 other pairs: failed links: switch 0.1 up
collective = "reduce_scatter", aggregation = "tree" | 'tree' has no reduce_scatter
ranks = 4, straggler = {rank = 1, factor = 2} | straggler: factor: a collective has no work to slow
ranks = 4, straggler = {rank = 1, seconds = 1, at = "backward"}
    | straggler: at: a collective has no work to pause before
[replay]
batch_per_rank = "-" | global_batch: give exactly one of global_batch, batch_per_rank
global_batch = 7, batch_per_rank = "-" | global_batch: 7 images are not divisible by the 2 copies of the network
flops = "-", model = "vgg19" | device: give exactly one of device, flops, times; no times
flops = 0 | flops: must be more than 0, not 0
flops = "-", times = "no/such/run" | times: no/such/run
model = "googlenet", dataset = "digits" | model:
model = {name = "locally_connected_vision", maps = 1000000000}, network = "gemini" | parameters, and may have 1e+15
flops = 1e-05 | flops: the steps would sleep for
ranks = 5, straggler = {by_rank = [0, 1, 0]} | straggler: by_rank: has 3 pauses for
ranks = 5, straggler = {by_rank = [0, -1, 0, 0]} | straggler: seconds: must be from 0
ranks = 5, straggler = {rank = 1, by_rank = [0, 1, 0, 0]} | straggler: by_rank: has the pauses of all ranks
ranks = 5, straggler = {rank = 1, seconds = 1, at = "update"}
    | straggler: at: 'update' is neither input nor forward or backward, nor that of a layer
ranks = 5, straggler = {rank = 1, seconds = 1, at = "backward conv"}
    | straggler: at: the rank has no layer 'conv'; did you mean 'conv
ranks = 4, straggler = {rank = 1, seconds = 1, at = "forward fc1.sam"}, mesh = {model = 2}
    | straggler: at: the rank has no layer 'fc1.sam'; did you
straggler = {rank = 1, seconds = 1, at = "forward conv1"}, training = "pipeline", mesh = {pipeline = 2}
    | straggler: at: the rank has no layer 'conv1'; valid names: fc1, fc2, flatten
"""
"""By kind of case: the keys that differ from those of a valid case, "-" for one that is left out, and the refusal."""


def table(kind):
    """Yield the changed keys and the refusal of each row of a kind."""
    for row in REFUSED.partition(f"[{kind}]\n")[2].partition("\n[")[0].replace("\n    |", " |").splitlines():
        keys, _, refusal = row.partition(" | ")
        changed = tomllib.loads(f"keys = {{{keys}}}")["keys"]
        yield {key: None if value == "-" else value for key, value in changed.items()}, refusal


@pytest.mark.parametrize("kind", CASES)
def test_a_case_that_cannot_run_is_refused_in_one_line(kind, written, refused):
    for changed, refusal in table(kind):
        message = refused(written(kind, **changed))
        assert message.startswith("[[case]] 1: ")
        assert refusal in message, changed


def test_every_message_count_of_a_docstring_can_be_evaluated():
    for collective in COLLECTIVES:
        for name in schemes(collective):
            assert (cost.volume("Messages", offered(collective, name), 1024, 1 << 20) or 0) >= 0


def test_lists_with_too_many_cases_are_refused(written, refused):
    """They are counted before they are made: these lists have 10^30 cases."""
    many = [*range(1000)]
    keys = ("message_bytes", "repetitions", "warmup", "ranks_per_host", "threads", "ranks", "trace", "dtype")
    lists = dict.fromkeys(keys, many) | {"start": many, "placement": many}
    assert refused(written("collective", **lists)) == (
        f"[[case]] 1: its lists make {10**30} cases; a suite has at most 10000"
    )


def test_ranks_that_exceed_the_memory_of_the_node_are_refused(tmp_path, written, monkeypatch, capsys):
    monkeypatch.setattr(suite, "node_memory_bytes", lambda: 100 * PROCESS_BYTES)
    file = tmp_path / "s.toml"
    file.write_text(written("pairwise", pattern="all_pairs", ranks=101))
    assert main(["run", str(file), "-o", str(tmp_path / "run")]) == 2
    assert "101 processes: needs at least 101 ranks x 0.06 GB of memory" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


TWO = text_of({**CASES["collective"], "aggregation": ["ring", "tree"]}, CASES["pairwise"])


def test_a_value_that_only_unselected_cases_refuse_is_accepted(refused):
    """Only a tree has an arity, and 6 bytes are not float32; the selected cases can run."""
    overrides = ["case.aggregation.arity=3"]
    assert "unknown setting 'arity'" in refused(TWO, overrides)
    (tree,) = suite.parse(TWO, "s.toml", overrides, ("*tree*",)).cases
    assert tree.spec.aggregation.written == {"name": "tree", "arity": 3}
    (exchange,) = suite.parse(TWO, "s.toml", ["case.message_bytes=6"], ("pairwise-*",)).cases
    assert exchange.spec.message_bytes == 6
    for glob in ("*ring*", "collective-*"):
        with pytest.raises(suite.UsageError, match="unknown setting 'arity'"):
            suite.parse(TWO, "s.toml", overrides, (glob,))
