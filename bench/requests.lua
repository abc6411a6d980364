-- What wrk sends, and a count of it for each millisecond, so that a window can be chosen afterwards: one in which every
-- connection is open. The environment says what is sent:
--   BENCH_METHOD, BENCH_BYTES (of a POST's body), BENCH_SESSIONS (that many session IDs take turns),
--   BENCH_CURSORS (a file with lines of session ID, Last-Event-ID and target, which take turns),
--   BENCH_FROM (where in that file to begin), BENCH_UNIQUE (makes every cursor a different one),
--   BENCH_FLOWING (after so many requests a line on standard error says that they flow).
local ffi = require('ffi')
ffi.cdef('typedef struct { long s; long ns; } bench_time; int clock_gettime(int clock, bench_time *time);')
local MONOTONIC = 1

local method = os.getenv('BENCH_METHOD') or 'POST'
local size = tonumber(os.getenv('BENCH_BYTES') or '1024')
local sessions = tonumber(os.getenv('BENCH_SESSIONS') or '1')
local cursors = os.getenv('BENCH_CURSORS')
local at = tonumber(os.getenv('BENCH_FROM') or '0')
local unique = os.getenv('BENCH_UNIQUE')
local flowing = tonumber(os.getenv('BENCH_FLOWING') or '0')

local body = nil
if method == 'POST' then
  local before = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bench","arguments":{"text":"'
  local after = '"}}}'
  body = before .. string.rep('x', size - #before - #after) .. after
end

local function formatted(session, cursor, target)
  return wrk.format(method, target, {
    ['Accept'] = 'application/json, text/event-stream',
    ['Content-Type'] = body and 'application/json' or nil,
    ['Mcp-Session-Id'] = session,
    ['MCP-Protocol-Version'] = '2025-11-25',
    ['Last-Event-ID'] = cursor,
  }, body)
end

local made, time, sent = {}, ffi.new('bench_time'), 0
-- Global, because `done` runs outside the thread and gets at nothing else.
counts = {}

function init()
  if not cursors then
    for i = 1, sessions do
      made[i] = formatted('bench-' .. (i - 1), nil, nil)
    end
    return
  end
  for line in io.lines(cursors) do
    local session, cursor, target = line:match('^(%S+) (%S+) (%S+)$')
    made[#made + 1] = unique and { session, cursor, target } or formatted(session, cursor ~= '-' and cursor or nil, target)
  end
end

function request()
  ffi.C.clock_gettime(MONOTONIC, time)
  local ms = tonumber(time.s) * 1000 + math.floor(tonumber(time.ns) / 1000000)
  counts[ms] = (counts[ms] or 0) + 1
  local next = made[at % #made + 1]
  at = at + 1
  sent = sent + 1
  if sent == flowing then
    io.stderr:write('flowing\n')
  end
  if unique then
    return formatted(next[1], next[2] .. '-' .. ms .. '-' .. at, next[3])
  end
  return next
end

local workers = {}

function setup(thread)
  workers[#workers + 1] = thread
end

function done(summary)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format('{"answers":%d,"refused":%d,"failed":%d,"sent":[', summary.requests, errors.status, failed))
  local parts = {}
  for _, thread in ipairs(workers) do
    for ms, count in pairs(thread:get('counts')) do
      parts[#parts + 1] = string.format('[%d,%d]', ms, count)
    end
  end
  io.write(table.concat(parts, ','), ']}\n')
end
