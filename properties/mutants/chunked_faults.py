"""Faults in the chunk-parallel Triton kernels, as patches of their source. `CHUNKED` names them.

None of them writes where it may not, and none waits for a message that nobody sends: what a fault does must be seen in
the outputs. What chunks do as the serial kernels do has its faults in serial_faults.py; those that break more here,
where what a chunk does to a state is sent to others, are put into both.
"""

from dataclasses import replace

from properties.mutants.patch import Patch
from properties.mutants.serial_faults import SERIAL


def _chunked(name: str, fault: str, old: str, new: str, *, file: str = "chunked.py", subject: str = "chunked") -> Patch:
    return Patch(name, fault, file, old, new, subject=subject)


def _also_in_chunks(name: str) -> Patch:
    """A serial fault in the same line of the chunked kernels, or in what both share."""
    patch = SERIAL[name]
    file = "chunked.py" if patch.file == "serial.py" else patch.file
    return replace(patch, name=f"{name}_in_chunks", file=file, subject="chunked")


_PATCHES = (
    *map(
        _also_in_chunks,
        (
            "reset_does_not_clear_the_carry",
            "reset_of_older_runs_forgotten",
            "tail_decays_the_state",
            "tail_decays_the_writes",
            "states_saved_in_bf16",
            "h0_of_the_first_row",
            "dh_last_of_the_first_row",
            "nan_a_param_of_resets",
        ),
    ),
    # --------------------------------------------------------------------------------------- which messages
    _chunked(
        "group_forgets_the_one_before",
        "A chunk does not ask for the state that the group before its own ended with.",
        "awaited = mask & (sender + k >= 0) & (sender + k < chunk)",
        "awaited = mask & (sender + k >= 0) & (sender + k < chunk) & (k > 0)",
        file="chain.py",
    ),
    _chunked(
        "newest_map_not_awaited",
        "A chunk does not ask for the message of the one before it.",
        "awaited = mask & (sender + k >= 0) & (sender + k < chunk)",
        "awaited = mask & (sender + k >= 0) & (sender + k < chunk - 1)",
        file="chain.py",
    ),
    _chunked(
        "last_map_of_a_group_dropped",
        "The last chunk of a group does not apply the map of the one before it.",
        "    for k in tl.static_range(GROUP):\n        h = receive(words[k], h)",
        "    for k in tl.static_range(GROUP - 1):\n        h = receive(words[k], h)",
        file="chain.py",
    ),
    _chunked(
        "maps_in_reverse_order",
        "A chunk applies the messages of its group from the newest to the oldest.",
        "h = receive(words[k], h)",
        "h = receive(words[GROUP - 1 - k], h)",
        file="chain.py",
    ),
    _chunked(
        "messages_of_rows_shared",
        "The rows of a batch have their messages in one place.",
        "messages_ptr += chain * chunks * CHANNELS + tl.arange(0, CHANNELS)[None, :]",
        "messages_ptr += (chain - b * tl.cdiv(width, CHANNELS)) * chunks * CHANNELS + tl.arange(0, CHANNELS)[None, :]",
    ),
    _chunked(
        "messages_of_tiles_shared",
        "The tiles of channels of a row have their messages in one place.",
        "messages_ptr += chain * chunks * CHANNELS + tl.arange(0, CHANNELS)[None, :]",
        "messages_ptr += b * chunks * CHANNELS + tl.arange(0, CHANNELS)[None, :]",
    ),
    _chunked(
        "messages_of_rows_shared_backwards",
        "The rows of a batch have the backward's messages in one place.",
        "messages_ptr += chain * chunks * CHANNELS + tl.arange(0, CHANNELS)\n",
        "messages_ptr += (chain - b * tl.cdiv(width, CHANNELS)) * chunks * CHANNELS + tl.arange(0, CHANNELS)\n",
    ),
    _chunked(
        "messages_of_tiles_shared_backwards",
        "The tiles of channels of a row have the backward's messages in one place.",
        "messages_ptr += chain * chunks * CHANNELS + tl.arange(0, CHANNELS)\n",
        "messages_ptr += b * chunks * CHANNELS + tl.arange(0, CHANNELS)\n",
    ),
    # ----------------------------------------------------------------------------------- what a message says
    _chunked(
        "cut_not_sent",
        "A message does not say that a reset cuts off what came before.",
        "bits = _bits(tl.where(cut != 0, -1.0, decay))",
        "bits = _bits(decay)",
        file="chain.py",
    ),
    _chunked(
        "cut_is_a_decay_of_minus_1",
        "A message that is cut is applied as one that multiplies by -1.",
        "return apply(decay, _float(word), (decay < 0.0).to(tl.int32), h, False)",
        "return apply(decay, _float(word), (decay < 0.0).to(tl.int32), h, True)",
        file="chain.py",
    ),
    _chunked(
        "decay_of_zero_is_cut",
        "A decay of zero, which is sent as -0, is taken for a reset, so that no NaN passes it.",
        "(decay < 0.0).to(tl.int32)",
        "(word < 0).to(tl.int32)",
        file="chain.py",
    ),
    _chunked(
        "sign_of_the_write_in_the_decay",
        "A negative write, widened with its sign, covers the decay in its message.",
        ".to(tl.int64) & 0xFFFFFFFF",
        ".to(tl.int64)",
        file="chain.py",
    ),
    _chunked(
        "writes_sent_in_bf16",
        "The write of a message is rounded to bfloat16.",
        "(bits << 32) | _bits(write)",
        "(bits << 32) | _bits(write.to(tl.bfloat16).to(tl.float32))",
        file="chain.py",
    ),
    _chunked(
        "map_of_the_last_run_sent",
        "The map that a chunk sends is that of its last run, without the runs before.",
        "send(messages_ptr + chunk * CHANNELS, decay, write, cut, last &",
        "send(messages_ptr + chunk * CHANNELS, decays[STEPS - 1], writes[STEPS - 1], (bits != 0).to(tl.int32), last &",
    ),
    _chunked(
        "map_without_the_last_run_sent",
        "The map that a chunk sends is that of the runs before its last one.",
        "send(messages_ptr + chunk * CHANNELS, decay, write, cut, last &",
        "send(messages_ptr + chunk * CHANNELS, past_decay, past_write, past_cut, last &",
    ),
    _chunked(
        "group_sends_its_start",
        "The last chunk of a group sends the state that it starts with.",
        "send(messages_ptr + chunk * CHANNELS, decay, end, 1, last & ends_group)",
        "send(messages_ptr + chunk * CHANNELS, decay, h, 1, last & ends_group)",
    ),
    _chunked(
        "group_sends_its_start_backwards",
        "The last chunk of a group of the backward sends the flow that comes in.",
        "send(messages_ptr + chunk * CHANNELS, decay, end, 1, inside & ends_group)",
        "send(messages_ptr + chunk * CHANNELS, decay, flow, 1, inside & ends_group)",
    ),
    _chunked(
        "group_sends_its_last_map",
        "The last chunk of a group sends its map as the others do.",
        "send(messages_ptr + chunk * CHANNELS, decay, end, 1, last & ends_group)",
        "send(messages_ptr + chunk * CHANNELS, decay, write, cut, last & ends_group)",
    ),
    _chunked(
        "end_of_a_group_passes_resets_backwards",
        "The flow that a group of the backward ends with passes the resets of its last chunk.",
        "end = apply(decay, write, cut, flow, False)",
        "end = apply(decay, write, cut, flow, True)",
    ),
    # ------------------------------------------------------------------------------------------ first states
    _chunked(
        "h0_in_the_first_chunk_only",
        "The other chunks of the first group start from a state of zero.",
        "first = inside & (has_h0 > 0) & (chunk < GROUP)",
        "first = inside & (has_h0 > 0) & (chunk < 1)",
    ),
    _chunked(
        "h0_in_every_group",
        "Every group starts from h0 in place of the state that the one before ended with.",
        "        first = inside & (has_h0 > 0) & (chunk < GROUP)\n"
        "        h = tl.load(h0_ptr + b * width + d + 0 * row, mask=first, other=0.0)\n"
        "        h = wait(messages_ptr, chunk, inside, h, GROUP, CHANNELS)",
        "        h = tl.load(h0_ptr + b * width + d + 0 * row, mask=inside & (has_h0 > 0), other=0.0)\n"
        "        messages_of_group_ptr = messages_ptr + (chunk - chunk % GROUP) * CHANNELS\n"
        "        h = wait(messages_of_group_ptr, chunk % GROUP, inside, h, GROUP, CHANNELS)",
    ),
    _chunked(
        "dh_last_in_the_first_chunk_only",
        "The other chunks of the backward's first group start from a flow of zero.",
        "mask=inside & (chunk < GROUP), other=0.0",
        "mask=inside & (chunk < 1), other=0.0",
    ),
    _chunked(
        "dh_last_in_every_group",
        "Every group of the backward starts from dh_last in place of the flow that the one before ended with.",
        "mask=inside & (chunk < GROUP), other=0.0)\n"
        "        flow = wait(messages_ptr, chunk, inside, flow, GROUP, CHANNELS)",
        "mask=inside, other=0.0)\n        first = chunk - chunk % GROUP\n"
        "        flow = wait(messages_ptr + first * CHANNELS, chunk % GROUP, inside, flow, GROUP, CHANNELS)",
    ),
    # ------------------------------------------------------------------------------------- resets of a chunk
    _chunked(
        "reset_at_the_start_of_a_chunk_ignored",
        "The first step of a chunk, but of the first one, is no reset.",
        "all_bits = resets(position, LENGTH)",
        "all_bits = resets(tl.where((tl.arange(0, LENGTH) > 0) | (chunk == 0), position, 1), LENGTH)",
    ),
    _chunked(
        "reset_at_the_end_of_a_chunk_ignored",
        "The last step of a chunk is no reset.",
        "all_bits = resets(position, LENGTH)",
        "all_bits = resets(tl.where(tl.arange(0, LENGTH) < LENGTH - 1, position, 1), LENGTH)",
    ),
    _chunked(
        "resets_of_the_chunk_before",
        "A chunk reads the resets of the chunk before it.",
        "words, t + tl.arange(0, LENGTH), T)",
        "words, t - LENGTH + tl.arange(0, LENGTH), T)",
    ),
    _chunked(
        "resets_of_the_first_run",
        "Every run of a chunk has the resets of its first one.",
        "bits = ((all_bits >> (row * STEPS)) & ((1 << STEPS) - 1)).to(tl.int32)",
        "bits = ((all_bits >> (row * 0)) & ((1 << STEPS) - 1)).to(tl.int32)",
    ),
    _chunked(
        "resets_of_the_first_row_backwards",
        "Every row of the batch has the resets of the first one in the backward.",
        "segment_pos_ptr += (b * T + t) * words",
        "segment_pos_ptr += t * words",
    ),
    _chunked(
        "resets_of_whole_chunks_ignored",
        "A chunk whose steps all exist is taken for one without resets.",
        "plain = (t + LENGTH <= T) & (all_bits == 0)",
        "plain = t + LENGTH <= T",
    ),
    _chunked(
        "reset_not_seen_by_the_next_run",
        "What came before a chunk passes a reset in an earlier run.",
        "start = apply(past_decay, past_write, past_cut, h, False)",
        "start = apply(past_decay, past_write, past_cut, h, True)",
    ),
    # --------------------------------------------------------------------------------- tails and last states
    _chunked(
        "partial_chunk_taken_for_whole",
        "The steps of a last chunk that do not exist count, where it has no reset.",
        "    if plain:\n        decays, writes = run(",
        "    if all_bits == 0:\n        decays, writes = run(",
    ),
    _chunked(
        "h_last_of_the_first_run",
        "h_last is the state after the first run of the last chunk.",
        "end, mask=last & (chunk == chunks - 1)",
        "end, mask=inside & (row == 0) & (chunk == chunks - 1)",
    ),
    _chunked(
        "h_last_of_a_partial_chunk_is_its_start",
        "h_last is the state that the last chunk starts with, where not all of its steps exist.",
        "end, mask=last & (chunk == chunks - 1)",
        "tl.where(t + LENGTH <= T, end, h), mask=last & (chunk == chunks - 1)",
    ),
    _chunked(
        "h_last_rounded_as_y_in_chunks",
        "h_last is rounded to the dtype of x.",
        "end, mask=last & (chunk == chunks - 1)",
        "end.to(y_ptr.dtype.element_ty).to(tl.float32), mask=last & (chunk == chunks - 1)",
    ),
    _chunked(
        "saved_states_overlap_in_chunks",
        "The saved states of a row begin within those of the row before, where the last run is not whole.",
        "states_ptr += (b * tl.cdiv(T, SAVE) + t // SAVE) * width",
        "states_ptr += (b * (T // SAVE) + t // SAVE) * width",
    ),
    _chunked(
        "saved_state_within_a_run_is_its_start",
        "All states saved of a run are the one it starts with.",
        "tl.store(state_ptr + (step // SAVE) * stride, h, mask=mask)",
        "tl.store(state_ptr + (step // SAVE) * stride, start, mask=mask)",
        file="tile.py",
    ),
    # ------------------------------------------------------------------------------------------ the backward
    _chunked(
        "saved_states_of_the_first_chunk",
        "The backward rebuilds every chunk from the states saved of the first one.",
        "states_ptr + (b * tl.cdiv(T, STEPS) + t // STEPS) * width",
        "states_ptr + b * tl.cdiv(T, STEPS) * width",
    ),
    _chunked(
        "saved_states_one_run_early",
        "The backward rebuilds a run from the state before the previous one, in every chunk but the first.",
        "states_ptr + (b * tl.cdiv(T, STEPS) + t // STEPS) * width",
        "states_ptr + (b * tl.cdiv(T, STEPS) + tl.maximum(t // STEPS - 1, 0)) * width",
    ),
    _chunked(
        "dh0_of_the_last_chunk",
        "dh0 is the flow out of the last chunk of time.",
        "flow, mask=inside & (chunk == chunks - 1)",
        "flow, mask=inside & (chunk == 0)",
    ),
    _chunked(
        "da_param_without_the_last_chunk",
        "The last chunk of time does not count in da_param, where there are others.",
        "da_param, mask=inside)",
        "tl.where((chunk == 0) & (chunks > 1), 0.0, da_param), mask=inside)",
    ),
    _chunked(
        "da_param_is_the_mean_over_chunks",
        "da_param is divided by the number of chunks.",
        "da_param, mask=inside)",
        "da_param / chunks, mask=inside)",
    ),
    _chunked(
        "da_param_of_the_first_row",
        "Only the chunks of the first row count in da_param.",
        "sum_rows(da_param)",
        "sum_rows(da_param[: triton.cdiv(steps, chunk_size)])",
    ),
    _chunked(
        "map_back_passes_resets",
        "What a chunk of the backward sends has not stopped at its resets.",
        "((bits >> (STEPS - 1 - back)) & 1) != 0, 0.0, flow)\n            write",
        "((bits >> (STEPS - 1 - back)) & 1) < 0, 0.0, flow)\n            write",
        file="tile.py",
    ),
    _chunked(
        "map_back_stops_one_step_late",
        "What a chunk of the backward sends has stopped at the step before each reset.",
        "((bits >> (STEPS - 1 - back)) & 1) != 0, 0.0, flow)\n            write",
        "((bits >> (STEPS - back)) & 1) != 0, 0.0, flow)\n            write",
        file="tile.py",
    ),
    _chunked(
        "map_back_is_cut_by_its_first_run_only",
        "Resets behind the first run of a chunk do not cut the map that the backward sends.",
        "cut = cut | bits",
        "cut = (cut & 0) | bits",
        file="tile.py",
    ),
    _chunked(
        "map_back_decays_in_the_tail",
        "Steps that do not exist decay the map that the backward sends.",
        "decay = tl.where(here, a * decay, decay)",
        "decay = a * decay",
        file="tile.py",
    ),
    _chunked(
        "map_back_has_the_tail_in_every_run",
        "What the last run lacks in steps, every run of the map lacks that the backward sends.",
        "        left = STEPS\n        gates_a = next_gates_a\n",
        "        gates_a = next_gates_a\n",
        file="tile.py",
    ),
    _chunked(
        "map_back_keeps_the_gates_of_its_last_run",
        "The map that the backward sends has the gates of the chunk's last run in every run.",
        "        gates_a = next_gates_a\n        dys = next_dys\n    return",
        "        dys = next_dys\n    return",
        file="tile.py",
    ),
    _chunked(
        "map_back_keeps_the_cotangents_of_its_last_run",
        "The map that the backward sends has the cotangents of the chunk's last run in every run.",
        "        gates_a = next_gates_a\n        dys = next_dys\n    return",
        "        gates_a = next_gates_a\n    return",
        file="tile.py",
    ),
    # ---------------------------------------------------------------------------------------- three launches
    _chunked(
        "groups_without_their_last_map",
        "Between launches a group's state is that before its last chunk.",
        "        for k in tl.static_range(GROUP):\n            h = receive(maps[k], h)",
        "        for k in tl.static_range(GROUP - 1):\n            h = receive(maps[k], h)",
        subject="three-pass",
    ),
    _chunked(
        "groups_behind_the_first_keep_their_map",
        "Between launches only the first group of a chain gets the state it ends with.",
        "for end in range(GROUP - 1, chunks, GROUP):",
        "for end in range(GROUP - 1, tl.minimum(chunks, GROUP), GROUP):",
        subject="three-pass",
    ),
    _chunked(
        "groups_ignore_the_first_state",
        "Between launches every chain starts from a state of zero.",
        "mask=inside & (has_first > 0)",
        "mask=inside & (has_first < 0)",
        subject="three-pass",
    ),
    _chunked(
        "groups_start_from_the_first_row",
        "Between launches every chain starts from the first row's state.",
        "tl.load(first_ptr + chain // tiles * D + d",
        "tl.load(first_ptr + d",
        subject="three-pass",
    ),
    _chunked(
        "last_map_of_a_group_not_sent",
        "The first of three launches sends no map of a group's last chunk.",
        "last & ((PHASE == MAPS) | ~ends_group)",
        "last & ~ends_group",
        subject="three-pass",
    ),
)

CHUNKED: dict[str, Patch] = {patch.name: patch for patch in _PATCHES}
