/*
 * The client in front of every proxy of the benchmark: one thread, one epoll loop, event streams only (JSON requests
 * come from wrk). Arguments: what to do, a port, the request target, then `name=value`.
 *
 *   drain   opens `streams` of them, reads each to its end, and compares the number of events with what was sent
 *   timed   the same, reads the time in each event for `ms`, after `warm` ms
 *   first   one connection, `count` requests one after the other: the time to the first byte of each body
 *   slow    one stream, read at `rate` bytes a second: what came, and a hash of it
 *   hold    opens as many streams as each line `open N` on standard input says, and holds them until that ends
 *
 * More names: `method`, and `session`, to which each stream adds its number, so that each has a session of its own.
 * Every answer is a line of JSON on standard output. Times are in nanoseconds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"

enum { HEAD_MAX = 8192, TAIL = 1024, MOST_OPENING = 128, PATIENCE_S = 300, STRAGGLERS_MS = 100, RESULT_AT = 104 };

struct stream {
  int fd;
  int number;
  enum { CONNECTING, HEAD, BODY, DONE } state;
  char *head;
  int head_length;
  int is_chunked;
  struct chunks chunks;
  int64_t body_left;
  /* The event that is being read, as far as it fits. */
  char event[TAIL];
  int event_length;
  int after_line;
  int64_t events, sent, began;
  int opened;
};

static enum { DRAIN, TIMED_EVENTS, FIRST_BYTE, SLOW, HOLD } mode;
static int poller, port;
static const char *target, *method = "POST", *session = "bench";
static long wanted = 1, count = 1000, milliseconds = 1000, warm = 500, rate;

static struct stream **streams;
static long started, opening, opened, alive, finished, failed;
static int64_t events, bytes, short_by, first_began, last_end, measure_from, measure_to;
static int64_t *delays;
static long delay_count, delay_room;
static uint64_t hash = 14695981039346656037u;
static int64_t asked_at;
static int announced;

static void keep_delay(int64_t ns) {
  if (delay_count == delay_room) {
    delay_room = delay_room * 2 + 4096;
    delays = need(realloc(delays, sizeof *delays * delay_room));
  }
  delays[delay_count++] = ns;
}

static int by_value(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static int64_t quantile(double q) {
  if (delay_count == 0) return 0;
  long at = (long)(q * (double)(delay_count - 1) + 0.5);
  return delays[at];
}

static void print_delays(void) {
  qsort(delays, delay_count, sizeof *delays, by_value);
  printf("{\"count\":%ld,\"events\":%lld,\"p50\":%lld,\"p99\":%lld,\"failed\":%ld}\n", delay_count, (long long)events,
         (long long)quantile(.5), (long long)quantile(.99), failed);
  fflush(stdout);
}

static void ask(struct stream *s) {
  static const char call[] = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"bench\",\"arguments\":{},\"_meta\":{\"progressToken\":1}}}";
  char request[2048];
  int is_post = strcmp(method, "POST") == 0;
  int length = snprintf(request, sizeof request,
                        "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: application/json, text/event-stream\r\n"
                        "Mcp-Session-Id: %s-%d\r\nMCP-Protocol-Version: 2025-11-25\r\n",
                        method, target, port, session, s->number);
  if (is_post) {
    length += snprintf(request + length, sizeof request - length,
                       "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", sizeof call - 1, call);
  } else {
    length += snprintf(request + length, sizeof request - length, "\r\n");
  }
  asked_at = now_ns();
  if (mode == SLOW) first_began = asked_at;
  if (send(s->fd, request, length, MSG_NOSIGNAL) != length) die("request");
  s->state = HEAD;
  s->head_length = 0;
  s->event_length = 0;
  s->after_line = 0;
}

static void start_stream(void) {
  struct stream *s = need(calloc(1, sizeof *s));
  s->number = (int)started;
  streams[started++] = s;
  opening += 1;
  s->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (s->fd < 0) die("socket");
  int on = 1;
  setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (connect(s->fd, (struct sockaddr *)&address, sizeof address) < 0 && errno != EINPROGRESS) die("connect");
  struct epoll_event e = {.events = EPOLLOUT, .data.ptr = s};
  epoll_ctl(poller, EPOLL_CTL_ADD, s->fd, &e);
}

static void watch(struct stream *s, int what) {
  struct epoll_event e = {.events = what, .data.ptr = s};
  epoll_ctl(poller, EPOLL_CTL_MOD, s->fd, &e);
}

static void close_stream(struct stream *s, int in_order) {
  if (s->state == DONE) return;
  if (s->opened) alive -= 1;
  else opening -= 1;
  s->state = DONE;
  close(s->fd);
  finished += 1;
  if (!in_order) failed += 1;
}

static void first_byte(struct stream *s, int64_t now) {
  if (mode == FIRST_BYTE && s->event_length == 0 && s->events == 0) keep_delay(now - asked_at);
  if (s->opened) return;
  s->opened = 1;
  opening -= 1;
  opened += 1;
  alive += 1;
  free(s->head);
  s->head = NULL;
}

static int64_t number_after(const char *text, const char *name) {
  const char *found = strstr(text, name);
  return found == NULL ? -1 : atoll(found + strlen(name));
}

/* An event is complete; its beginning is in `event`. */
static void event_ended(struct stream *s, int64_t now) {
  s->events += 1;
  events += 1;
  if (mode == HOLD || mode == SLOW || mode == FIRST_BYTE) return;
  if (mode == TIMED_EVENTS) {
    s->event[s->event_length] = '\0';
    int64_t at = number_after(s->event, "\"at\":");
    if (at >= 0 && at >= measure_from && at < measure_to) keep_delay(now - at);
    return;
  }
  if (!announced && s->events == 2) {
    announced = 1;
    printf("{\"flowing\":true}\n");
    fflush(stdout);
  }
  /* The result has its id where a notification has its method: no need to search every event. */
  if (s->event_length < RESULT_AT + 16 || s->event[RESULT_AT] != 'i') return;
  s->event[s->event_length] = '\0';
  s->sent = number_after(s->event, "\"sent\":");
  s->began = number_after(s->event, "\"began\":");
}

static void take_body(struct stream *s, const char *from, int64_t length, int64_t now) {
  bytes += length;
  if (mode == SLOW) {
    for (int64_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)from[i]) * 1099511628211u;
  }
  first_byte(s, now);
  const char *end = from + length;
  while (from < end) {
    const char *line_end = memchr(from, '\n', end - from);
    const char *until = line_end == NULL ? end : line_end + 1;
    int is_blank = line_end == from && s->after_line;
    if (!is_blank) {
      int64_t room = TAIL - 1 - s->event_length;
      int64_t here = until - from < room ? until - from : room;
      memcpy(s->event + s->event_length, from, here);
      s->event_length += here;
    }
    if (is_blank) {
      event_ended(s, now);
      s->event_length = 0;
    }
    s->after_line = line_end != NULL;
    from = until;
  }
}

static void body_ended(struct stream *s, int64_t now) {
  last_end = now;
  if (mode == FIRST_BYTE) {
    if (delay_count >= count) close_stream(s, 1);
    else {
      s->events = 0;
      s->chunks = (struct chunks){0};
      if (s->head == NULL) s->head = need(malloc(HEAD_MAX));
      ask(s);
    }
    return;
  }
  if (mode == DRAIN) {
    if (first_began == 0 || s->began < first_began) first_began = s->began;
    /* Beside the numbered events there are the first one and the result. */
    int64_t missing = s->sent + 2 - s->events;
    short_by += missing < 0 ? -missing : missing;
  }
  close_stream(s, 1);
}

static void take_head(struct stream *s, const char *input, int64_t length, int64_t now);

static void take(struct stream *s, const char *from, int64_t length, int64_t now) {
  const char *end = from + length;
  if (s->state == HEAD) {
    take_head(s, from, length, now);
    return;
  }
  if (!s->is_chunked) {
    if (s->body_left >= 0 && length > s->body_left) length = s->body_left;
    take_body(s, from, length, now);
    if (s->body_left >= 0 && (s->body_left -= length) == 0) body_ended(s, now);
    return;
  }
  while (from < end && s->chunks.at != OVER) {
    int64_t body = chunk_step(&s->chunks, &from, end);
    if (body < 0) {
      close_stream(s, 0);
      return;
    }
    if (body > 0) take_body(s, from - body, body, now);
  }
  if (s->chunks.at == OVER) body_ended(s, now);
}

static void take_head(struct stream *s, const char *input, int64_t length, int64_t now) {
  if (s->head == NULL) s->head = need(malloc(HEAD_MAX));
  int before = s->head_length;
  int64_t taken = length < HEAD_MAX - 1 - before ? length : HEAD_MAX - 1 - before;
  memcpy(s->head + before, input, taken);
  s->head_length += taken;
  s->head[s->head_length] = '\0';
  char *end = strstr(s->head, "\r\n\r\n");
  if (end == NULL) {
    if (taken < length) close_stream(s, 0);
    return;
  }
  int64_t of_input = end + 4 - s->head - before;
  end[2] = '\0';
  const char *coding = field(s->head, "transfer-encoding:");
  const char *body_length = field(s->head, "content-length:");
  s->is_chunked = coding != NULL && strncasecmp(coding, "chunked", 7) == 0;
  s->body_left = body_length == NULL ? -1 : atoll(body_length);
  s->chunks = (struct chunks){0};
  if (strncmp(s->head, "HTTP/1.1 200", 12) != 0) {
    fprintf(stderr, "answer: %.60s\n", s->head);
    close_stream(s, 0);
    return;
  }
  s->state = BODY;
  if (length > of_input) take(s, input + of_input, length - of_input, now);
}

static void on_event(struct stream *s, uint32_t what) {
  static char input[262144];
  if (s->state == DONE) return;
  if (s->state == CONNECTING) {
    if (what & (EPOLLERR | EPOLLHUP)) {
      close_stream(s, 0);
      return;
    }
    ask(s);
    watch(s, EPOLLIN);
    return;
  }
  int64_t most = sizeof input;
  if (mode == SLOW) {
    /* As many bytes as are due; a turn every 5 ms. */
    static int64_t since, taken;
    int64_t now = now_ns();
    if (since == 0) since = now;
    int64_t due = (now - since) / 1000 * rate / 1000000 - taken;
    if (due < rate / 200) {
      struct timespec pause = {0, 5000000};
      nanosleep(&pause, NULL);
      return;
    }
    if (due < most) most = due;
    ssize_t got = read(s->fd, input, most);
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0) taken += got;
    if (got <= 0) close_stream(s, 0);
    else take(s, input, got, now);
    return;
  }
  ssize_t got = read(s->fd, input, most);
  if (got < 0 && errno == EAGAIN) return;
  if (got <= 0) {
    close_stream(s, 0);
    return;
  }
  take(s, input, got, now_ns());
}

/* Opens streams, a bounded number at once, and reads until `until` says so. */
static void run(int (*until)(void), int with_input) {
  struct epoll_event ready[256];
  int64_t patience = now_ns() + (int64_t)PATIENCE_S * 1000000000;
  while (!until()) {
    while (started < wanted && opening < MOST_OPENING) start_stream();
    int number = epoll_wait(poller, ready, 256, 20);
    if (number < 0 && errno != EINTR) die("epoll");
    for (int i = 0; i < number; i++) {
      if (ready[i].data.ptr == NULL) {
        if (with_input) return;
      } else {
        on_event(ready[i].data.ptr, ready[i].events);
      }
    }
    if (!with_input && now_ns() > patience) {
      fprintf(stderr, "gave up after %d s: %ld of %ld streams open, %ld over\n", PATIENCE_S, opened, wanted, finished);
      exit(1);
    }
  }
}

static int all_open(void) { return opened + failed >= wanted; }
static int all_over(void) { return finished >= wanted; }
static int time_over(void) { return finished >= wanted || now_ns() >= measure_to; }
/* Events that were sent in time may come later. */
static int stragglers_over(void) { return finished >= wanted || now_ns() >= measure_to + STRAGGLERS_MS * 1000000LL; }
static int never(void) { return 0; }

static void hold(void) {
  char line[64];
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
  if (epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &e) < 0) die("epoll");
  for (;;) {
    run(never, 1);
    if (fgets(line, sizeof line, stdin) == NULL) break;
    wanted += atol(line + strlen("open "));
    streams = need(realloc(streams, sizeof *streams * (wanted + 1)));
    run(all_open, 0);
    printf("{\"open\":%ld,\"failed\":%ld}\n", alive, failed);
    fflush(stdout);
  }
}

int main(int argument_count, char **arguments) {
  if (argument_count < 4) return 2;
  const char *names[] = {"drain", "timed", "first", "slow", "hold"};
  int known = 0;
  for (int i = 0; i < 5; i++) {
    if (strcmp(arguments[1], names[i]) == 0) {
      mode = i;
      known = 1;
    }
  }
  if (!known) return 2;
  port = atoi(arguments[2]);
  target = arguments[3];
  for (int i = 4; i < argument_count; i++) {
    char *value = strchr(arguments[i], '=');
    if (value == NULL) return 2;
    *value++ = '\0';
    if (strcmp(arguments[i], "streams") == 0) wanted = atol(value);
    if (strcmp(arguments[i], "count") == 0) count = atol(value);
    if (strcmp(arguments[i], "ms") == 0) milliseconds = atol(value);
    if (strcmp(arguments[i], "warm") == 0) warm = atol(value);
    if (strcmp(arguments[i], "rate") == 0) rate = atol(value);
    if (strcmp(arguments[i], "method") == 0) method = value;
    if (strcmp(arguments[i], "session") == 0) session = value;
  }
  if (mode == HOLD) wanted = 0;
  streams = need(calloc(wanted + 1, sizeof *streams));
  poller = epoll_create1(EPOLL_CLOEXEC);
  switch (mode) {
    case DRAIN:
    case SLOW:
      run(all_over, 0);
      printf("{\"streams\":%ld,\"failed\":%ld,\"events\":%lld,\"bytes\":%lld,\"short\":%lld,\"elapsed\":%lld,\"hash\":\"%016llx\"}\n",
             finished, failed, (long long)events, (long long)bytes, (long long)short_by,
             (long long)(last_end - first_began), (unsigned long long)hash);
      break;
    case TIMED_EVENTS:
      measure_from = measure_to = INT64_MAX;
      run(all_open, 0);
      measure_from = now_ns() + warm * 1000000;
      measure_to = measure_from;
      run(time_over, 0);
      printf("{\"measuring\":true}\n");
      fflush(stdout);
      events = 0;
      measure_from = now_ns();
      measure_to = measure_from + milliseconds * 1000000;
      run(stragglers_over, 0);
      print_delays();
      break;
    case FIRST_BYTE:
      run(all_over, 0);
      print_delays();
      break;
    case HOLD:
      hold();
      break;
  }
  return 0;
}
