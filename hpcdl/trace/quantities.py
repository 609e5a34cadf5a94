"""Quantities of a case: all that a trace records of it, and all that the analysis computes from its trace.

The classes are the chapters of the description of CSV and JSON (``hpcdl/report/README.md``), which is made of
them, as is the JSON Schema. A new quantity is one line here: a kind of case records it, or the analysis computes
it, by its name, and tables show it.
"""

from collections.abc import Sequence
from typing import Final

from hpcdl.trace.files import JsonMapping
from hpcdl.trace.quantity import Quantity, count, declared, flag, known_count, number, seconds, text

EXCHANGES: Final = ("all_pairs", "bisection", "random_pairs")
"""Patterns in which every rank exchanges messages with one other at a time."""


class Description:
    """The case."""

    suite = text("names of the suite and of the case", reduction="first")
    case = text(reduction="first")
    kind = Quantity("string", "train", "`train`, `replay`, `collective`, `pairwise` or `node`")
    model = text("model and its training data; in a collective case the model whose gradient gives the size")
    dataset = text()
    backend = text("the library that computes, and the type of the numbers")
    dtype = text()
    training = text("training strategy with its settings")
    aggregation = text(
        "algorithm that sums over ranks; `own`: the strategy's own messages; of a pairwise case `fabric` or `raw`"
    )
    compression = text("compressor of the gradients")
    optimizer = text("update rule, how the rate changes, and the rate itself")
    schedule = text()
    learning_rate = number()
    ranks = Quantity("integer", 1, "MPI processes, and their hosts; of a simulated case the modelled ones")
    nodes = count(heading="nodes")
    threads_per_rank = count("threads for BLAS and compiled kernels")
    global_batch = count("images in a step of all ranks; images of one rank, in weak scaling")
    batch_per_rank = count()
    scaling = text("`strong`: global batch stays; `weak`: batch of a rank stays", choices=("strong", "weak"))
    epochs = number("length that the suite asks for, in epochs or in steps; steps that were taken")
    planned_steps = count()
    steps = count()
    target_accuracy = number("accuracy, 0 to 1, that the training should reach")
    collective = text("operation, and the size of each rank's vector")
    message_bytes = count(unit="B", heading="size")
    counts = text("of an alltoallv: law or file of the elements that each rank sends to each")
    pattern = text(
        "of a pairwise case: `pair`, `all_pairs`, `bisection`, `random_pairs`, `incast`, `congestor` or "
        "`message_rate`; of a node case: `alone` (one host after the other) or `together`",
        choices=("pair", *EXCHANGES, "incast", "congestor", "message_rate", "alone", "together"),
    )
    start = text("of a collective: how ranks begin together, and whether operand and result are one vector")
    placement = text()
    seed = count("seed of initial values, shuffles, augmentation and dropout")
    draw = count(
        "number of the launch's random compute times (`jitter`) and pauses, from 0; empty if nothing is "
        "random, or for several launches"
    )
    parallelism = text("`mesh` by which ranks share layers, such as `hybrid(data=1)`; empty if layers are whole")
    shares = text("unequal shares of a batch, such as `3:1`")
    straggler = text(
        "the slow rank in words; its number, or `all`; how many times as slow; length of its pauses; share of"
        " its batches before which it pauses"
    )
    straggler_rank: Quantity[int | str | None] = Quantity("integer string null", None)
    straggler_factor = number()
    straggler_pause_seconds = seconds()
    straggler_pause_share = number()
    failure = text("planned failure of a rank; the ranks that failed")
    process_failure = text(reduction="union")
    network = text("model of the network of a simulated case; empty: measured")
    ranks_per_host = count()
    device = text("source of the times of simulated or replayed work: device, rate in FLOP/s, or recorded run")
    flops = number()
    times = text()
    jitter = number("standard deviation of a simulated batch's compute time, relative to it")
    time_scale = number("of a replay: factor on all compute times")
    settings: Quantity[JsonMapping] = Quantity(
        "object",
        {},
        "the settings of the case that differ from their defaults, by key of the suite: an object in JSON, "
        "JSON text in CSV",
        reduction="first",
    )
    digest = text("hash of all settings of the case: equal in all runs of the same case", reduction="first")
    lockstep = flag(
        "whether all ranks take every step together, so that the slowest rank's step is the training's"
    )
    independent = flag("whether ranks exchange nothing, so that replicas are independent")
    served = flag("whether servers apply the gradients that workers push")
    gradients_in_flight = count(
        "gradients of a worker between the pull of their parameters and their push, where workers wait for none"
    )
    system = text("name of the strategy with these settings in the literature")
    image_shape = text("shape of the images; where they come from; hash of their values")
    dataset_source = text()
    dataset_digest = text()
    parameters = count("numbers in the model")


class Origin:
    """When, where and with what software."""

    run = text("name of the run folder, with as many parent folders as tell it from the other runs of the report")
    date = text("when the run began, UTC, ISO 8601")
    hosts = text("names of the hosts of the case's ranks, with spaces between them")
    mpi_library = text("as MPI itself states them")
    mpi_version = text()
    hpcdl_version = text("version of hpcdl; git commit of its checkout, with `-dirty` where files were changed")
    commit = text()
    environment_key = text(
        "hash of the stable properties of machine and software: rows with different keys are from different "
        "machines or libraries",
        reduction="first",
    )
    log = text("of a log of another tool: the tool, its version, and what its times are")
    slurm_job = text("number of the Slurm job, `JOB_TASK` in a job array")
    launches = known_count(
        "launches of the case whose times count in this row; disturbed ones that do not, as others are undisturbed"
    )
    launches_left_out = known_count()


class TrainingNumbers:
    """Training."""

    step_seconds = seconds("median time of a step of the slowest rank, with its 95 % interval")
    step_seconds_low, step_seconds_high = step_seconds.bounds()
    images_per_second = number(
        "all measured images by the time that they took, pauses included; median over launches",
        heading="images/s",
        better="higher",
    )
    speedup = number("(global batch / step time) / that of the base", better="higher")
    efficiency = number("speedup / (ranks / base's ranks), with its 95 % interval; 1 is linear", better="higher")
    efficiency_low, efficiency_high = efficiency.bounds()
    base_ranks = count(
        "base of speedup and efficiency: ranks, aggregation (`any`: several together), launches, step time"
    )
    base_aggregation = text()
    base_launches = count()
    base_step_seconds = seconds()
    near_linear = flag(
        "`True`: efficiency above `0.90`, `False`: below, by a t test over launches; empty: inconclusive, "
        "disturbed, or a base. p-value of `0.90`, adjusted over the cases of the run (Benjamini & Hochberg)"
    )
    near_linear_p = number()
    base_disturbed = flag("whether all launches of the base were disturbed")
    compute_seconds = seconds("local work of the rank that computes longest, in a step, input included")
    input_seconds = seconds("part of it that the rank which waits longest waits for its images")
    exposed_communication_seconds = seconds("step time - step time without communication, with its 95 % interval")
    exposed_communication_seconds_low, exposed_communication_seconds_high = exposed_communication_seconds.bounds()
    ceiling_disturbed = flag("whether all launches of the case without communication were disturbed")
    load_balance = number(
        "mean compute time over ranks / the largest; largest compute time / step time",
        heading="load balance",
        better="higher",
    )
    communication_efficiency = number(heading="communication", better="higher")
    bytes_sent_per_rank = number("in a step, of the rank that sends most", unit="B")
    messages_per_rank = number()
    compression_ratio = number(
        "bytes of an uncompressed ring on as many ranks / bytes sent, in all steps; dense first steps excluded",
        heading="ratio",
        better="higher",
    )
    encode_seconds = seconds("arithmetic of compressors in a step, on rank 0 (s)", heading="encode")
    decode_seconds = seconds(heading="decode")
    residual_bytes = count(
        "memory of residuals and of the compressor's vectors, on rank 0",
        unit="B",
        heading="memory",
        reduction="greatest",
    )
    noise_scale_q1 = number(
        "gradient noise scale in images (McCandlish et al. 2018), in each quarter of a `synchronous` training"
        " with dense sums"
    )
    noise_scale_q2 = number()
    noise_scale_q3 = number()
    noise_scale_q4 = number(heading="noise scale")
    train_accuracy = number(
        "after the end, on a fixed sample of training images: accuracy (of 2,048 images, if there are so many), "
        "the largest and the smallest eigenvalue "
        "of the Hessian of the loss, of which a negative one belongs to a saddle point, and the gradient's norm",
        seeded=True,
        better="higher",
    )
    sharpness = number(seeded=True, heading="sharpness")
    smallest_eigenvalue = number(seeded=True, heading="smallest eigenvalue")
    final_gradient_norm = number(seeded=True, heading="gradient's norm")
    discarded_share = number('share of the gradients that a server received and discarded (`stale = "drop"`)')
    tuning = count("trials of a search, the settings it found, and the training images it took")
    tuned = text(reduction="union")
    tuning_images = count()
    tuning_trials = text("of a grid: final accuracy by value; the next value, if the best one is at an edge")
    tuning_edge = text()
    tuning_like = text("keys of the other case whose trials found it, and the factor on the rate that they found")
    test_loss = number(
        "on the test set at the end, if a validation set was held out; then `final_loss` and `final_accuracy`"
        " are the same",
        seeded=True,
        better="lower",
    )
    test_accuracy = number(seeded=True, better="higher")
    bits_per_entry = number(
        "bits of a message for an entry, and of an ideal code for the positions of the last message, on rank 0",
        heading="bits",
    )
    entropy_bits_per_entry = number(heading="entropy")
    residual_norm = number(
        "norm of the residual (unsent gradients), root mean square over ranks: at the end; largest at evaluations",
        heading="residual",
    )
    residual_norm_largest = number(heading="largest")
    gradient_cosine = number(
        "cosine of the angle between compressed and dense sum of the last step, and norm of their difference "
        "/ norm of the dense sum",
        heading="cosine",
        better="higher",
    )
    gradient_error = number(heading="error")
    bucket_bytes = count("size of the pieces that gradients are sent in", unit="B", reduction="median")
    chosen = text('what `aggregation = "auto"` measured to be best', reduction="union")
    stages = count(
        "of a pipeline: ranks that have the layers among them, and parts of a batch that pass through them",
        heading="stages",
    )
    microbatches = count()
    bubble_share = number(
        "of a pipeline: idle share of a rank's step, mean over ranks; `load_balance` is that of its stages",
        heading="bubble",
        better="lower",
    )
    activation_bytes_per_rank = count(
        "outputs of a rank's layers for all images in flight, of the rank with most, by the sizes of the layers",
        unit="B",
        heading="activations",
    )
    memory_bytes_per_rank = count(
        "vectors as long as the parameters, of the rank that holds most", unit="B", heading="memory per rank"
    )
    diverged_step = count(
        "training diverged: smallest step, from 0, with a loss that is not finite, or after as many steps "
        "parameters that are not, or, if simulated, values that a compressor cannot send; lowest such rank. Then "
        "accuracy, loss and times to the target are empty"
    )
    diverged_rank = count()
    final_loss = number("on the test set at the end; the best of all evaluations", seeded=True, better="lower")
    final_accuracy = number(seeded=True, heading="final accuracy", better="higher")
    best_accuracy = number(seeded=True, better="higher")
    seconds_to_target = number("training time, images and epochs until `target_accuracy`", better="lower")
    samples_to_target = count()
    epochs_to_target = number(heading="epochs", better="lower")
    sent_bytes = count(
        "of a training in virtual time: bytes that all ranks sent until its end, without those of tests; sent per "
        "rank until `target_accuracy`, in proportion to the images",
        unit="B",
    )
    bytes_to_target = number(unit="B", better="lower")
    samples_before_target = number("images at the last evaluation before it, or at the last one if it was missed")
    staleness_mean = number(
        "updates that the parameters saw while a gradient was computed: mean, largest, and what theory expects",
        heading="mean",
    )
    staleness_max = number()
    staleness_expected = number(heading="expected")
    workers = count("ranks whose gradients a server applied, and gradients in one update", heading="workers")
    gradients_per_update = number(heading="gradients an update")
    consensus_distance = number(
        "root mean square distance of the ranks' parameters from their average, at the end",
        heading="consensus distance",
    )
    modelled_compute_seconds = seconds("of a replay: compute time of a step that it was given")


class OperationNumbers:
    """Collectives and exchanges."""

    time_p50_seconds = seconds("median time of the slowest rank, with its 95 % interval", heading="p50")
    time_p50_low_seconds, time_p50_high_seconds = time_p50_seconds.bounds()
    time_p95_seconds = seconds("quantiles over repetitions, and the longest", heading="p95")
    time_p99_seconds = seconds(heading="p99")
    time_max_seconds = seconds(heading="max")
    algbw_bytes_per_second = number(
        "`message_bytes` / median time; this times the factor of nccl-tests, of an alltoallv `busiest_bytes` / "
        "median time",
        unit="B/s",
        heading="algbw",
    )
    busbw_bytes_per_second = number(unit="B/s", heading="busbw")
    busiest_bytes = count(
        "of an alltoallv: bytes that the busiest rank sends to others or receives from them, whichever is more; "
        "largest / mean bytes that a rank receives, its own included",
        unit="B",
        heading="busiest rank",
    )
    imbalance = number(heading="imbalance", better="lower")
    link_bytes_per_second = number(
        "rate of a host's link: of `--link`, else of emulated links or of the NICs that carried the bytes",
        unit="B/s",
    )
    expected_seconds = seconds("median time that is expected on the network of `hpcdl report --network`")
    operations = number(
        "of a repetition: up to 64 KiB a loop of about two milliseconds is timed, and divided by it"
    )
    copied = flag("the operand was copied first, within the time")
    same_bits = flag("all ranks have the same bits", reduction="all")
    start_error_seconds = seconds(
        'of `start = "window"`: error bound of the agreed moment; how long before it was announced; share of '
        "repetitions in which a rank was late"
    )
    start_lead_seconds = seconds()
    starts_late = number()
    from_first_arrival_seconds = seconds(
        "of a collective with a straggler: median time from the first, and from the last, rank's arrival "
        "until the last rank has ended",
        heading="from first",
    )
    from_last_arrival_seconds = seconds(heading="from last")
    alone_p50_seconds = seconds(
        "of a congestor: the allreduce, alone and beside bulk traffic",
    )
    alone_p99_seconds = seconds()
    beside_p50_seconds = seconds()
    beside_p99_seconds = seconds()
    simulation_seconds = seconds("how long the simulation itself took")
    simulated_ranks = count(
        "of a simulated collective, replay or predicted step: number of ranks that stood for all by symmetry;"
        " all, where method or network has none",
        heading="simulated ranks",
    )
    work_flop = count("of a node case: floating-point operations of a repetition on a rank, and per second")
    flop_per_second = number(heading="FLOP/s", better="higher")
    measured_again = text(
        "of a node or pairwise case with `confirm`: a list of [host or pair, first departure, later ones], each a "
        "time / the usual time; hosts by their first rank, pairs (i, j) of ranks as i x ranks + j",
        reduction="union",
    )
    fairness = number(
        "of an incast: Jain's fairness index of the senders' rates at the receiver (Jain, Chiu & Hawe 1984): 1 if "
        "all are equal, 1 / number of senders if one has all",
        better="higher",
    )
    global_bytes = count(
        "of a simulated collective: bytes between groups of a dragonfly, to the root of a fat tree, or over all "
        "links of a torus, where each link on the way counts",
        unit="B",
        heading="global bytes",
    )
    bytes_sent_per_host = number(
        "of a simulated replay without a topology: bytes that a host sends to others in a step, mean over hosts",
        unit="B",
        heading="sent per host",
    )


class CommonNumbers:
    """All kinds."""

    launch_seconds: Quantity[Sequence[float] | None] = Quantity(
        "array null", None, "median time of a step or repetition in each launch: a list"
    )
    waiting_seconds = seconds(
        "in a step or repetition, mean over ranks: time in which a rank does not compute and waits for "
        "another rank to begin; in which it moves bytes. Empty: the trace has no messages"
    )
    transfer_seconds = seconds()
    late_rank = count(
        "rank that is late in most steps; longest waiting of another rank for it, mean over steps; of a simulated "
        "replay by how much its straggler delays it more than any other rank. Empty: no rank is late"
    )
    late_seconds = seconds()
    clock_error_seconds = seconds(
        "greatest error of the ranks' clock offsets; 0 on one host; `late_rank` is late by more than twice this",
        reduction="greatest",
    )
    correct = flag("`False`: a check of the result failed; empty: not checked", reduction="all")
    error = text("what broke the case")
    disturbed = text(
        "which rank was disturbed from outside the job, by what and how much, if all launches were; empty: "
        "undisturbed, or not recorded. Limits: `hpcdl/analysis/run/disturbance.py`"
    )
    throttled = text(
        "which node's clocks were slowed down in the case, and why: heat or a power brake, not the usual power "
        "limit of a GPU; errors of GPU memory and NVLink in the case, and GPUs that are lost or need a reset. "
        "Empty: none, or not readable"
    )
    hardware_errors = text()
    energy_joules = number(
        "energy of the nodes, of which devices (`processors`, with memory where it is metered, `GPUs`), in the "
        "whole case, with warm-up and evaluation; by the images of all its steps, by the GB of all its "
        "repetitions (`message_bytes` each). Empty unless all counters of all nodes moved",
        better="lower",
    )
    energy_of = text()
    joules_per_image = number(heading="J/image", better="lower")
    joules_per_gigabyte = number(heading="J/GB", better="lower")
    emulated = flag(
        "the hosts are those of `hpcdl testbed`; ranks want more cores than their node has (empty: unknown)"
    )
    oversubscribed = flag(reduction="any")
    stolen = Quantity(
        "number null",
        0.0,
        "share of its time that the hypervisor took from the rank that lost most, mean over launches",
    )
    busy_cores = number("busy cores, of those that a rank may use: mean over ranks, median over launches")
    predicted_seconds = seconds(
        "the same programs on a network model: of measured collectives and exchanges the model that was "
        "fitted when the run ended, or by `--predict`, of simulated ones the formula",
        heading="predicted",
    )
    predicted_low_seconds = seconds("95 % interval of a time that `hpcdl predict` prints")
    predicted_high_seconds = seconds()
    predicted_images_per_second = number("of a training step: throughput and mean staleness of simulated ranks")
    predicted_staleness_mean = number()
    times_the_measured_ranks = number("ranks of a prediction / most ranks that the network was fitted to")
    undetermined = flag("the prediction depends on a cost of the network that the measured times do not determine")
    library_decides = flag("the scheme is the MPI library's own; predicted is the best published one")
    compute_times = text("the measured case whose compute times a prediction uses")
    warmup_steps = known_count("leading steps or repetitions that are left out; those that were measured")
    measured_steps = known_count()
    ranks_recorded = known_count("ranks that left a trace")


class Unreported:
    """Quantities that CSV and JSON do not have."""

    launch = count("number of the launch, from 1, among several that are pooled")
    ring_bytes = count("bytes of the uncompressed ring of `compression_ratio`, of all ranks and steps", unit="B")


CHAPTERS: Final = (Description, Origin, TrainingNumbers, OperationNumbers, CommonNumbers)
COLUMNS: Final = {quantity.name: quantity for chapter in CHAPTERS for quantity in declared(chapter)}
"""Columns of CSV and JSON by name, in their order."""
QUANTITIES: Final = COLUMNS | {quantity.name: quantity for quantity in declared(Unreported)}
