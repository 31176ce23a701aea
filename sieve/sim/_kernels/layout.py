"""Positions and columns of the arrays that the compiled loops share."""

from __future__ import annotations

from typing import Final

# Positions in the settings array.
BLOCK_SIZE: Final = 0
NUM_BLOCKS: Final = 1  # including block 0
MAX_RUNNING: Final = 2
TOKEN_BUDGET: Final = 3
MAX_MODEL_LEN: Final = 4
CHUNKED: Final = 5
CACHING: Final = 6
THRESHOLD: Final = 7
ADAPTIVE: Final = 8
PRIORITY: Final = 9
WATERMARK_BLOCKS: Final = 10
RESERVE_FULL_ISL: Final = 11
PREFILL_INTERVAL: Final = 12
ASYNC: Final = 13
PIPELINE: Final = 14
DRAFTS_K: Final = 15
LOOKAHEAD: Final = 16
KEY_AHEAD: Final = 17  # tokens past a block's end that its key covers
IN_FLIGHT: Final = 18
CLOCK: Final = 19  # one of CLOCK_...
STEP_BASE_NS: Final = 20
STEP_TOKEN_NS: Final = 21
STEP_CONTEXT_NS: Final = 22
RECORD: Final = 23  # one of RECORD_...
TABLE_WIDTH: Final = 24
PATIENCE: Final = 25  # steps without a token before the run counts as live-locked
FULL_RESERVATION: Final = 26  # admission takes the blocks of prompt and output
USERS: Final = 27  # of a closed loop: each sends the next request of the list at an end; 0: open
ROOFLINE: Final = 28  # the clock is max(memory, compute)
MAX_WAIT_NS: Final = 29  # stop when a new request at the head has waited longer; 0: never
MACRO: Final = 30  # whether decode-only steps may be advanced together
NUM_SETTINGS: Final = 31

# Clocks.
CLOCK_STEPS: Final = 0  # a turn is a step; arrivals are in steps
CLOCK_LINEAR: Final = 1  # whole nanoseconds by tokens and context
CLOCK_TABLE: Final = 2  # `clock.Clock`

# State scalars.
S_FREE: Final = 0
S_RUNNING: Final = 1
S_WAITING: Final = 2
S_NUM_DEFERRED: Final = 3
S_NUM_STATE: Final = 4

# Columns of `req`; those of every step come first.
R_KNOWN: Final = 0
R_COMPUTED: Final = 1
R_PENDING: Final = 2  # placeholders of tokens not yet delivered (asynchronous scheduling)
R_TOTAL: Final = 3  # prompt + output, at most max_model_len
R_IN_FLIGHT: Final = 4  # scheduled tokens whose result is not read
R_MID_PREFILL: Final = 5
R_STATE: Final = 6
R_LAST_NS: Final = 7  # time of its last token
R_DRAFTS: Final = 8
R_ROW: Final = 9
R_SETTLED: Final = 10  # blocks that are findable, or passed over for good
R_NEXT_CALL: Final = 11  # no decode before this call (asynchronous pipeline)
R_JUNCTION: Final = 12  # blocks that some kind matched in the last lookup, if not all did
R_PROMPT: Final = 13
R_KEYS: Final = 14  # offset into `keys`
R_CHECKS: Final = 15  # verifications of drafts so far
R_HEAP: Final = 16  # position in the priority heap
R_ARRIVAL: Final = 17
R_LEVEL: Final = 18  # priority
R_NAME: Final = 19  # rank of the id as text
R_DEFERRED: Final = 20  # passed over while waiting, for its result in flight
R_READY_NS: Final = 21  # when its last scheduled token leaves the pipeline
R_GROUPS: Final = 22

IS_NEW: Final = 0
IS_RUNNING: Final = 1
IS_PREEMPTED: Final = 2
IS_FINISHED: Final = 3

# Ends of the waiting queue.
FRONT: Final = 0
BACK: Final = 1

# Columns of `blk`.
K_NEXT: Final = 0
K_PREV: Final = 1
K_REFS: Final = 2
K_KEY: Final = 3
K_NEWER: Final = 4  # ring of blocks with equal key, oldest first
K_OLDER: Final = 5

# Columns of a batch.
B_REQUEST: Final = 0
B_TOKENS: Final = 1
B_DRAFTS: Final = 2
B_YIELDS: Final = 3
B_PADDED: Final = 4
B_IS_DECODE: Final = 5
B_NUM_COLUMNS: Final = 6

# Columns of the result per request, -1 where it never happened.
OUT: Final = 0
PREEMPTIONS: Final = 1
ARRIVAL: Final = 2
ADDED_STEP: Final = 3
FIRST_STEP: Final = 4
CACHED: Final = 5
FIRST_TOKEN_STEP: Final = 6
FINISH_STEP: Final = 7
FIRST_TOKEN_NS: Final = 8
FINISH_NS: Final = 9
REJECTED: Final = 10
SCHEDULED_NS: Final = 11  # start of the first batch with this request
NUM_RESULTS: Final = 12

# Positions in the counters array.
STEPS: Final = 0
REQUEST_STEPS: Final = 1
TOKENS: Final = 2
STATUS: Final = 3
PREEMPTED: Final = 4
PEAK_BLOCKS: Final = 5
END_NS: Final = 6
PEAK_BATCH: Final = 7
PEAK_TOKENS: Final = 8
FILLED_STEPS: Final = 9  # calls that scheduled something
TIGHT_STEPS: Final = 10  # calls advanced inside a macro-step
NUM_SAMPLES: Final = 11
LOG_LENGTH: Final = 12
PEAK_RUNNING: Final = 13
SHORT_OF_BLOCKS: Final = 14  # 1 if ever a waiting request was refused for blocks
NUM_COUNTERS: Final = 15

# 0: all requests are done.
STATUS_STALLED: Final = 1
STATUS_LIVE_LOCK: Final = 2
STATUS_OVERLOADED: Final = 3  # a request waited longer than MAX_WAIT_NS
STATUS_CLASH: Final = 4  # only the event kernel: a case that it must leave to the step kernel

# What is recorded.
RECORD_NOTHING: Final = 0
RECORD_TURNS: Final = 1
RECORD_TABLES: Final = 2  # turns with block tables, lists and the order of free blocks
RECORD_STEPS: Final = 3  # one row of STEP_... a call that scheduled something

# Columns of a recorded step.
STEP_CALL_NS: Final = 0
STEP_START_NS: Final = 1
STEP_END_NS: Final = 2
STEP_PREFILLS: Final = 3
STEP_PREFILL_TOKENS: Final = 4
STEP_PREFILL_CONTEXT: Final = 5  # tokens already computed before each prompt's chunk, summed
STEP_DECODES: Final = 6
STEP_DECODE_TOKENS: Final = 7
STEP_DECODE_CONTEXT: Final = 8  # tokens with cache after the step, summed over decoding requests
STEP_ADMITTED: Final = 9
STEP_PREEMPTED: Final = 10
STEP_RUNNING: Final = 11
STEP_WAITING: Final = 12
STEP_USED_BLOCKS: Final = 13
NUM_STEP_COLUMNS: Final = 14

SAMPLES: Final = 1024
"""Most rows of the thinned series: end of a step, running, waiting, blocks in use."""
NUM_SAMPLE_COLUMNS: Final = 4

# Bits of the first number of a recorded turn.
TURN_CALL: Final = 1
TURN_RESULT: Final = 2
TURN_IDLE: Final = 4
