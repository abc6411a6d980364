/*
 * The server behind every proxy of the benchmark: one thread, one epoll loop, faster than anything that is measured.
 * It speaks enough HTTP/1.1 for that and no more. The query says what is wanted:
 *
 *   POST ?do=json&bytes=N          a JSON-RPC result of N bytes
 *   POST ?do=init&session=ID       the answer to `initialize`, with that session ID
 *   POST ?do=call&tag=T            a stream of two notifications and the result; event IDs T-1, T-2, T-3
 *   POST ?do=cut&tag=T             the same without the result: the request stays open
 *   POST ?do=first                 a notification at once, the result half a millisecond later
 *   POST ?do=sse&ms=D&batch=B      events as fast as they go for D ms, B of them in a chunk, then the result
 *   POST ?do=timed&ms=D&hz=R       R events a second, each with the time at which it was sent
 *   POST ?do=large&bytes=N         one result of about N bytes, in chunks of 64 KB
 *   GET  ?do=idle                  an event, then silence
 *   GET  ?do=replay&tag=T          event T-2 again, then the end
 *   GET  ?do=empty                 an event stream that ends at once
 *   GET  ?do=none                  405, as a server that has no listening stream
 *
 * `gate=N` holds streams back until N of them are there, so that all begin together; `sndbuf=N` bounds what the kernel
 * takes for one stream. An event is about 290 bytes: 200 of data, an ID of 60 characters.
 *
 * Prints its port, and ends when its standard input does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "wire.h"

enum { HEAD_MAX = 16384, PIECE = 65536, MOST_GATED = 20000, MOST_CONNECTIONS = 65536 };

struct connection {
  int fd;
  /* Tells it from an earlier one with the same descriptor, whose events may still be in hand. */
  uint32_t serial;
  enum { READING_HEAD, READING_BODY, ANSWERING } state;
  int watched;
  char *head;
  int head_length;
  int64_t body_left;
  int body_is_chunked;
  struct chunks chunks;
  int closes;
  /* What is asked for. */
  char what[8];
  char tag[48];
  long bytes, ms, batch, hz, gate, sndbuf;
  /* Bytes the kernel has not taken. */
  const char *out;
  int64_t out_left;
  char *out_owned;
  /* A stream under way. */
  enum { NO_STREAM, FULL_SPEED, TIMED, FIRST, LARGE, QUIET } stream;
  char id[34];
  int64_t sequence, began, ends_at, position;
  /* In the heap of timers: its index from 1, 0 for none. */
  int timer;
  int64_t due;
};

static int poller, timer_fd;
static struct connection *connections[MOST_CONNECTIONS];
static char scratch[4 * PIECE], letters[PIECE + 4096];
static char event_template[2048];
static int event_length, sequence_in_id, sequence_in_data;
static uint64_t random_state = 1;
static struct connection *gated[MOST_GATED];
static long gated_count;

/* Marsaglia's xorshift64. */
static uint64_t random_next(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

/* Timers: a binary heap by due time. */

static struct connection **heap;
static int heap_size, heap_room;

static void heap_put(int at, struct connection *c) {
  heap[at] = c;
  c->timer = at;
}

static void heap_fix(int at) {
  struct connection *c = heap[at];
  while (at > 1 && heap[at / 2]->due > c->due) {
    heap_put(at, heap[at / 2]);
    at /= 2;
  }
  for (;;) {
    int child = at * 2;
    if (child < heap_size && heap[child + 1]->due < heap[child]->due) child += 1;
    if (child > heap_size || heap[child]->due >= c->due) break;
    heap_put(at, heap[child]);
    at = child;
  }
  heap_put(at, c);
}

static void timer_set(struct connection *c, int64_t due) {
  c->due = due;
  if (c->timer == 0) {
    if (heap_size + 2 > heap_room) {
      heap_room = heap_room * 2 + 64;
      heap = need(realloc(heap, sizeof *heap * heap_room));
    }
    heap_size += 1;
    heap_put(heap_size, c);
  }
  heap_fix(c->timer);
}

static void timer_clear(struct connection *c) {
  int at = c->timer;
  if (at == 0) return;
  c->timer = 0;
  struct connection *last = heap[heap_size];
  heap_size -= 1;
  if (last == c) return;
  heap_put(at, last);
  heap_fix(at);
}

static void arm(void) {
  static int64_t armed;
  int64_t due = heap_size == 0 ? 0 : heap[1]->due;
  if (due == armed) return;
  armed = due;
  struct itimerspec at = {.it_value = {due / 1000000000, due % 1000000000}};
  timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/* Sending. */

static void forget(struct connection *c) {
  timer_clear(c);
  for (long i = 0; i < gated_count; i++) {
    if (gated[i] == c) gated[i] = gated[--gated_count];
  }
  connections[c->fd] = NULL;
  close(c->fd);
  free(c->head);
  free(c->out_owned);
  free(c);
}

static void watch(struct connection *c, int events) {
  if (c->watched == events) return;
  struct epoll_event e = {.events = events, .data.u64 = (uint64_t)c->serial << 32 | (uint32_t)c->fd};
  epoll_ctl(poller, c->watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, c->fd, &e);
  c->watched = events;
}

/* Sends bytes that stay where they are; what the kernel does not take waits. False: the connection is gone. */
static int send_static(struct connection *c, const char *bytes, int64_t length) {
  ssize_t sent = send(c->fd, bytes, length, MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN) return 0;
  if (sent < 0) sent = 0;
  c->out = bytes + sent;
  c->out_left = length - sent;
  return 1;
}

/* The same for bytes that do not stay. */
static int send_copied(struct connection *c, const char *bytes, int64_t length) {
  if (!send_static(c, bytes, length)) return 0;
  if (c->out_left > 0) {
    free(c->out_owned);
    c->out_owned = need(malloc(c->out_left));
    memcpy(c->out_owned, c->out, c->out_left);
    c->out = c->out_owned;
  }
  return 1;
}

static void answered(struct connection *c) {
  c->stream = NO_STREAM;
  c->state = READING_HEAD;
  c->head_length = 0;
}

/* What is sent. */

#define STREAM_HEAD \
  "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"

struct text {
  char *bytes;
  int64_t length;
};

static struct text json_of(long bytes) {
  static struct text known[8];
  static long sizes[8];
  int free_slot = 0;
  for (int i = 0; i < 8; i++) {
    if (known[i].bytes != NULL && sizes[i] == bytes) return known[i];
    if (known[i].bytes == NULL) {
      free_slot = i;
      break;
    }
  }
  static const char before[] = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"";
  static const char after[] = "\"}]}}";
  long filler = bytes - (long)(sizeof before - 1) - (long)(sizeof after - 1);
  if (filler < 0) filler = 0;
  struct text made = {need(malloc(bytes + 512)), 0};
  made.length = sprintf(made.bytes, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                        sizeof before - 1 + filler + sizeof after - 1, before);
  for (long i = 0; i < filler; i++) made.bytes[made.length++] = letters[i % PIECE];
  memcpy(made.bytes + made.length, after, sizeof after - 1);
  made.length += sizeof after - 1;
  free(known[free_slot].bytes);
  known[free_slot] = made;
  sizes[free_slot] = bytes;
  return made;
}

/* One chunk with one event in it. */
static int put_event(char *to, const char *id, const char *data) {
  char event[1024];
  int length = sprintf(event, "event: message\nid: %s\ndata: %s\n\n", id, data);
  return sprintf(to, "%x\r\n%s\r\n", length, event);
}

#define LAST_CHUNK "0\r\n\r\n"
#define PROGRESS "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":%lld}}"
#define RESULT "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"done\"}],\"sent\":%lld,\"began\":%lld}}"

static int put_result(const struct connection *c, char *to, int64_t sent) {
  char id[80], data[512];
  sprintf(id, "%s_%013lld_%013lld", c->id, 1000000000000LL, 1000000000001LL + (long long)c->sequence);
  sprintf(data, RESULT, (long long)sent, (long long)c->began);
  int length = put_event(to, id, data);
  return length + sprintf(to + length, LAST_CHUNK);
}

/* The event that is sent at full speed, without chunk framing: only the digits of its number change. */
static void make_template(void) {
  char data[512];
  int length = sprintf(data, PROGRESS, 1000000000000LL);
  /* Before the closing braces, a message that brings the data to 200 bytes. */
  length -= 2;
  length += sprintf(data + length, ",\"message\":\"");
  while (length < 197) data[length++] = 'm';
  sprintf(data + length, "\"}}");
  event_length = sprintf(event_template, "event: message\nid: %032d_%013lld_%013lld\ndata: %s\n\n", 0, 1000000000000LL,
                         1000000000000LL, data);
  sequence_in_id = (int)(strstr(event_template, "\ndata") - event_template) - 13;
  sequence_in_data = (int)(strstr(event_template, "\"progress\":1") - event_template) + (int)strlen("\"progress\":");
}

static void put_digits(char *to, int64_t number) {
  for (int i = 12; i >= 0; i--) {
    to[i] = (char)('0' + number % 10);
    number /= 10;
  }
}

static int put_numbered(const struct connection *c, char *to, int64_t number) {
  memcpy(to, event_template, event_length);
  memcpy(to + 19, c->id, 32);
  put_digits(to + sequence_in_id, 1000000000000LL + number);
  put_digits(to + sequence_in_data, 1000000000000LL + number);
  return event_length;
}

static int fill_full_speed(struct connection *c) {
  char framing[16];
  int framing_length = sprintf(framing, "%x\r\n", (int)(event_length * c->batch));
  int chunk = framing_length + event_length * (int)c->batch + 2;
  int most = c->sndbuf > 0 && c->sndbuf < PIECE ? (int)c->sndbuf : PIECE;
  int length = 0;
  while (length == 0 || length + chunk <= most) {
    memcpy(scratch + length, framing, framing_length);
    length += framing_length;
    for (long i = 0; i < c->batch; i++) length += put_numbered(c, scratch + length, ++c->sequence);
    scratch[length++] = '\r';
    scratch[length++] = '\n';
  }
  return length;
}

/* Sends a piece of a stream that is ready for more. False: the connection is gone. */
static int go_on(struct connection *c) {
  switch (c->stream) {
    case FULL_SPEED:
      if (now_ns() < c->ends_at) return send_copied(c, scratch, fill_full_speed(c));
      c->stream = NO_STREAM;
      return send_copied(c, scratch, put_result(c, scratch, c->sequence));
    case LARGE: {
      if (c->position >= c->bytes) {
        static const char end[] = "e\r\n\"}]},\"id\":1}\n\n\r\n" LAST_CHUNK;
        c->stream = NO_STREAM;
        return send_static(c, end, sizeof end - 1);
      }
      int64_t here = c->bytes - c->position < PIECE ? c->bytes - c->position : PIECE;
      int length = sprintf(scratch, "%llx\r\n", (long long)here);
      /* A different place in the letters each time, so that a lost or doubled piece shows. */
      int64_t from = c->position / PIECE * 577 % PIECE;
      for (int64_t i = 0; i < here; i++) scratch[length + i] = letters[(from + i) & (PIECE - 1)];
      length += here;
      length += sprintf(scratch + length, "\r\n");
      c->position += here;
      return send_copied(c, scratch, length);
    }
    default:
      return 1;
  }
}

static int wants_to_go_on(const struct connection *c) { return c->stream == FULL_SPEED || c->stream == LARGE; }

/* After anything was sent: wait for room, go on, or be done. */
static void settle(struct connection *c) {
  if (c->out_left > 0 || wants_to_go_on(c)) {
    watch(c, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    return;
  }
  watch(c, EPOLLIN | EPOLLRDHUP);
  if (c->stream != NO_STREAM || c->state != ANSWERING) return;
  if (c->closes) forget(c);
  else answered(c);
}

static void on_writable(struct connection *c) {
  if (c->out_left > 0) {
    if (!send_static(c, c->out, c->out_left)) {
      forget(c);
      return;
    }
    if (c->out_left > 0) return;
    free(c->out_owned);
    c->out_owned = NULL;
  }
  if (wants_to_go_on(c) && !go_on(c)) {
    forget(c);
    return;
  }
  settle(c);
}

static void begin(struct connection *c, int64_t at) {
  c->began = at;
  c->ends_at = at + c->ms * 1000000;
  if (c->stream == TIMED) {
    /* Spread over a period, so that the load is even. */
    int64_t period = 1000000000 / c->hz;
    timer_set(c, at + (int64_t)(random_next() % (uint64_t)period));
  } else {
    watch(c, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
  }
}

static void on_timer(struct connection *c) {
  int64_t now = now_ns();
  int length;
  timer_clear(c);
  if (c->stream == FIRST || now >= c->ends_at) {
    length = put_result(c, scratch, c->sequence);
    c->stream = NO_STREAM;
  } else {
    char data[512];
    char id[80];
    c->sequence += 1;
    sprintf(id, "%s_%013lld_%013lld", c->id, 1000000000000LL, 1000000000000LL + (long long)c->sequence);
    int so_far = sprintf(data, "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":%lld,\"at\":%lld,\"message\":\"",
                         (long long)c->sequence, (long long)now_ns());
    while (so_far < 197) data[so_far++] = 'm';
    sprintf(data + so_far, "\"}}");
    length = put_event(scratch, id, data);
    timer_set(c, c->due + 1000000000 / c->hz);
  }
  /* A client that does not keep up at this rate is lost, not slow. */
  if (c->out_left > 0 || !send_copied(c, scratch, length)) forget(c);
  else settle(c);
}

static int is(const struct connection *c, const char *what) { return strcmp(c->what, what) == 0; }

/* The request is complete: answers it, or begins to. */
static void answer(struct connection *c, int is_get) {
  c->state = ANSWERING;
  int ok = 1;
  int length = sprintf(scratch, STREAM_HEAD);
  if (is(c, "json")) {
    struct text json = json_of(c->bytes);
    ok = send_static(c, json.bytes, json.length);
  } else if (is(c, "init")) {
    const char *body = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{},\"serverInfo\":{\"name\":\"bench\",\"version\":\"1\"}}}";
    length = sprintf(scratch, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: %s\r\nContent-Length: %zu\r\n\r\n%s", c->tag, strlen(body), body);
    ok = send_copied(c, scratch, length);
  } else if (is(c, "call") || is(c, "cut")) {
    char id[64], data[256];
    for (int i = 1; i <= 2; i++) {
      sprintf(id, "%s-%d", c->tag, i);
      sprintf(data, PROGRESS, (long long)i);
      length += put_event(scratch + length, id, data);
    }
    if (is(c, "call")) {
      sprintf(id, "%s-3", c->tag);
      sprintf(data, RESULT, 2LL, 0LL);
      length += put_event(scratch + length, id, data);
    }
    length += sprintf(scratch + length, LAST_CHUNK);
    ok = send_copied(c, scratch, length);
  } else if (is(c, "replay")) {
    char id[64], data[256];
    sprintf(id, "%s-2", c->tag);
    sprintf(data, PROGRESS, 2LL);
    length += put_event(scratch + length, id, data);
    length += sprintf(scratch + length, LAST_CHUNK);
    ok = send_copied(c, scratch, length);
  } else if (is(c, "empty")) {
    length += sprintf(scratch + length, LAST_CHUNK);
    ok = send_copied(c, scratch, length);
  } else if (is(c, "none") || (is_get && !is(c, "idle"))) {
    static const char none[] = "HTTP/1.1 405 Method Not Allowed\r\nAllow: POST, DELETE\r\nContent-Length: 0\r\n\r\n";
    ok = send_static(c, none, sizeof none - 1);
  } else {
    /* A stream that goes on. */
    sprintf(c->id, "%016llx%016llx", (unsigned long long)random_next(), (unsigned long long)random_next());
    c->sequence = 0;
    c->position = 0;
    c->began = now_ns();
    c->stream = is(c, "sse") ? FULL_SPEED : is(c, "timed") ? TIMED : is(c, "first") ? FIRST : is(c, "large") ? LARGE : QUIET;
    if (c->sndbuf > 0) {
      int size = (int)c->sndbuf;
      setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    }
    char id[80];
    /* The large one is compared byte for byte, so it is the same for everybody. */
    if (c->stream == LARGE) memset(c->id, '0', 32);
    sprintf(id, "%s_%013lld_%013lld", c->id, 1000000000000LL, 1000000000000LL);
    if (c->stream == LARGE) {
      char before[256];
      int before_length = sprintf(before, "event: message\nid: %s\ndata: {\"jsonrpc\":\"2.0\",\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"", id);
      length += sprintf(scratch + length, "%x\r\n%s\r\n", before_length, before);
    } else {
      char data[256];
      sprintf(data, PROGRESS, 0LL);
      length += put_event(scratch + length, id, data);
    }
    ok = send_copied(c, scratch, length);
    if (ok && c->stream == FIRST) timer_set(c, c->began + 500000);
    if (ok && (c->stream == FULL_SPEED || c->stream == TIMED)) {
      if (c->gate <= 1) {
        begin(c, c->began);
      } else if (gated_count < MOST_GATED) {
        gated[gated_count++] = c;
        if (gated_count >= c->gate) {
          int64_t at = now_ns();
          long count = gated_count;
          gated_count = 0;
          for (long i = 0; i < count; i++) begin(gated[i], at);
          return;
        }
        watch(c, EPOLLIN | EPOLLRDHUP);
        return;
      }
    }
  }
  if (!ok) forget(c);
  else settle(c);
}

/* Reading requests. */

static long number_in(const char *query, const char *name, long otherwise) {
  char wanted[32];
  sprintf(wanted, "%s=", name);
  const char *found = strstr(query, wanted);
  return found == NULL ? otherwise : atol(found + strlen(wanted));
}

static void word_in(const char *query, const char *name, char *to, size_t room) {
  char wanted[32];
  sprintf(wanted, "%s=", name);
  const char *found = strstr(query, wanted);
  size_t length = 0;
  if (found != NULL) {
    found += strlen(wanted);
    while (length + 1 < room && found[length] != '\0' && strchr("& \r\n", found[length]) == NULL) length += 1;
    memcpy(to, found, length);
  }
  to[length] = '\0';
}

/* Reads a head that is complete. False: it is nothing we can read. */
static int read_head(struct connection *c) {
  char *line_end = strchr(c->head, '\n');
  char *query = memchr(c->head, '?', (size_t)(line_end - c->head));
  if (query == NULL) return 0;
  char *rest = line_end;
  *rest = '\0';
  word_in(query, "do", c->what, sizeof c->what);
  word_in(query, is(c, "init") ? "session" : "tag", c->tag, sizeof c->tag);
  c->bytes = number_in(query, "bytes", 1024);
  c->ms = number_in(query, "ms", 1000);
  c->batch = number_in(query, "batch", 1);
  c->hz = number_in(query, "hz", 20);
  c->gate = number_in(query, "gate", 1);
  c->sndbuf = number_in(query, "sndbuf", 0);
  if (c->bytes > 1 << 30 || c->batch < 1 || c->batch > 200 || c->hz < 1) return 0;
  *rest = '\n';
  const char *length = field(c->head, "content-length:");
  const char *coding = field(c->head, "transfer-encoding:");
  const char *connection = field(c->head, "connection:");
  c->body_is_chunked = coding != NULL && strncasecmp(coding, "chunked", 7) == 0;
  c->chunks = (struct chunks){0};
  c->body_left = length == NULL ? 0 : atoll(length);
  c->closes = connection != NULL && strncasecmp(connection, "close", 5) == 0;
  return 1;
}

/* Takes the bytes of a body. True when it is complete, -1 when it is broken. */
static int take_body(struct connection *c, const char *bytes, int64_t length) {
  if (!c->body_is_chunked) {
    c->body_left -= length;
    return c->body_left <= 0;
  }
  const char *end = bytes + length;
  while (bytes < end && c->chunks.at != OVER) {
    if (chunk_step(&c->chunks, &bytes, end) < 0) return -1;
  }
  return c->chunks.at == OVER;
}

static void on_readable(struct connection *c) {
  static char input[4 * PIECE];
  ssize_t got = read(c->fd, input, sizeof input);
  if (got <= 0) {
    if (got == 0 || errno != EAGAIN) forget(c);
    return;
  }
  const char *bytes = input;
  if (c->state == ANSWERING) return;
  if (c->state == READING_HEAD) {
    int before = c->head_length;
    int room = HEAD_MAX - 1 - before;
    int taken = got < room ? (int)got : room;
    if (c->head == NULL) c->head = need(malloc(HEAD_MAX));
    memcpy(c->head + before, input, taken);
    c->head[before + taken] = '\0';
    char *end = memmem(c->head, before + taken, "\r\n\r\n", 4);
    if (end == NULL) {
      c->head_length = before + taken;
      if (taken < got || c->head_length >= HEAD_MAX - 1) forget(c);
      return;
    }
    int head_end = (int)(end - c->head) + 4;
    end[2] = '\0';
    bytes = input + (head_end - before);
    got -= head_end - before;
    if (!read_head(c)) {
      forget(c);
      return;
    }
    c->state = READING_BODY;
  }
  int complete = take_body(c, bytes, got);
  if (complete < 0) {
    forget(c);
  } else if (complete) {
    int is_get = c->head[0] == 'G';
    c->head_length = 0;
    /* A stream may be one of thousands, and its head is of no more use. */
    if (!is(c, "json")) {
      free(c->head);
      c->head = NULL;
    }
    answer(c, is_get);
  }
}

static void accept_all(int listener) {
  for (;;) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    if (fd >= MOST_CONNECTIONS) {
      close(fd);
      continue;
    }
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct connection *c = need(calloc(1, sizeof *c));
    static uint32_t serials;
    c->fd = fd;
    c->serial = ++serials;
    connections[fd] = c;
    watch(c, EPOLLIN | EPOLLRDHUP);
  }
}

int main(int count, char **arguments) {
  if (count > 1) random_state = strtoull(arguments[1], NULL, 10) * 2654435761u + 1;
  for (int i = 0; i < (int)sizeof letters; i++) letters[i] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."[random_next() >> 58];
  make_template();
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  if (bind(listener, (struct sockaddr *)&address, size) < 0 || listen(listener, 4096) < 0) die("listen");
  getsockname(listener, (struct sockaddr *)&address, &size);
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  poller = epoll_create1(EPOLL_CLOEXEC);
  timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  int own[] = {listener, timer_fd, STDIN_FILENO};
  for (int i = 0; i < 3; i++) {
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = (uint32_t)own[i]};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, own[i], &e) < 0) die("epoll");
  }
  struct epoll_event events[256];
  for (;;) {
    arm();
    int ready = epoll_wait(poller, events, 256, -1);
    if (ready < 0 && errno != EINTR) die("epoll");
    for (int i = 0; i < ready; i++) {
      int fd = (int)(uint32_t)events[i].data.u64;
      if (fd == STDIN_FILENO) {
        char ignored[64];
        if (read(fd, ignored, sizeof ignored) <= 0) return 0;
      } else if (fd == listener) {
        accept_all(fd);
      } else if (fd == timer_fd) {
        uint64_t ticks;
        if (read(fd, &ticks, sizeof ticks) < 0) continue;
        while (heap_size > 0 && heap[1]->due <= now_ns()) on_timer(heap[1]);
      } else {
        struct connection *c = connections[fd];
        if (c == NULL || c->serial != events[i].data.u64 >> 32) continue;
        if (events[i].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
          forget(c);
          continue;
        }
        if (events[i].events & EPOLLOUT) on_writable(c);
        if (connections[fd] == c && events[i].events & EPOLLIN) on_readable(c);
      }
    }
  }
}
