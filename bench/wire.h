/* What the two ends of the benchmark agree on: the clock, and the reading of chunked bodies. */
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* CLOCK_MONOTONIC is one clock for all processes of a machine, so a time written by one end can be read by the other. */
static inline int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void die(const char *what) {
  perror(what);
  exit(1);
}

static inline void *need(void *memory) {
  if (memory == NULL) die("memory");
  return memory;
}

/* The value of a field in a head that ends with a zero byte, or NULL. `name` in small letters with its colon. */
static inline const char *field(const char *head, const char *name) {
  size_t length = strlen(name);
  for (const char *line = strchr(head, '\n'); line != NULL; line = strchr(line, '\n')) {
    line += 1;
    if (strncasecmp(line, name, length) == 0) {
      line += length;
      while (*line == ' ' || *line == '\t') line += 1;
      return line;
    }
  }
  return NULL;
}

/* RFC 9112 section 7.1, without trailers' contents. */
struct chunks {
  enum { SIZE, SIZE_REST, DATA, DATA_END, TRAILER, TRAILER_LINE, OVER } at;
  int64_t left;
};

/*
 * The next step through a chunked body: takes bytes from *p (up to `end`) and returns how many of them, ending at the
 * new *p, are body. Call until *p reaches `end` or `at` is OVER. Returns -1 on broken framing.
 */
static inline int64_t chunk_step(struct chunks *c, const char **p, const char *end) {
  while (*p < end && c->at != OVER) {
    char byte = **p;
    switch (c->at) {
      case SIZE: {
        int digit = byte >= '0' && byte <= '9' ? byte - '0' : (byte | 32) >= 'a' && (byte | 32) <= 'f' ? (byte | 32) - 'a' + 10 : -1;
        *p += 1;
        if (digit >= 0) c->left = c->left * 16 + digit;
        else if (byte == '\n') c->at = c->left == 0 ? TRAILER : DATA;
        else c->at = SIZE_REST;
        break;
      }
      case SIZE_REST:
        *p += 1;
        if (byte == '\n') c->at = c->left == 0 ? TRAILER : DATA;
        break;
      case DATA: {
        int64_t here = end - *p < c->left ? end - *p : c->left;
        *p += here;
        c->left -= here;
        if (c->left == 0) c->at = DATA_END;
        return here;
      }
      case DATA_END:
        *p += 1;
        if (byte == '\n') c->at = SIZE;
        else if (byte != '\r') return -1;
        break;
      case TRAILER:
        *p += 1;
        if (byte == '\n') c->at = OVER;
        else if (byte != '\r') c->at = TRAILER_LINE;
        break;
      case TRAILER_LINE:
        *p += 1;
        if (byte == '\n') c->at = TRAILER;
        break;
      case OVER:
        break;
    }
  }
  return 0;
}

#endif
