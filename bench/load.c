/* The load generator: one thread, one epoll loop, publishers and watchers of one server on the loopback interface.
 *
 * load run    --port N [--publishers N --bodies FILE] [--watchers N --filters FILE] [--seconds S] [--rate R]
 *             [--deliveries N] [--drain S] [--pid N] [--stamped] [--hold]
 * load replay --port N --filters FILE [--pid N]
 *
 * Bodies and filters are files with one JSON body per line, taken in turn. With --stamped the first run of 19 '#' of a
 * body is replaced by the nanosecond at which it was due, and every delivery is timed by it. With --deliveries N each
 * publish is expected N times, and the run ends when all have arrived or --drain seconds after the last publish. With
 * --pid the CPU time of that process is measured along. With --hold it opens the watchers, says so and waits for the
 * end of its input. The answer is one line of JSON. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define STAMP 19
#define OPENING 128        /* watchers that may be opening at the same time */
#define CARRY 64
#define MARK "\"specversion\""
#define STAMP_MARK "\"t\":\""
#define OPENED "event: heartbeat"

enum role { PUBLISHER, WATCHER };

struct conn {
    int fd;
    enum role role;
    int busy;   /* publisher: a request is out */
    int opened; /* watcher: its first heartbeat has come */
    int64_t due;
    const char *out;
    size_t out_len, out_done;
    char *own; /* publisher: its copy of a stamped request */
    char in[2048];
    size_t in_len;
};

struct request {
    char *text;
    size_t len, stamp; /* where the stamp goes, 0: nowhere */
};

struct list {
    struct request *items;
    size_t count;
};

struct samples {
    uint32_t *values;
    size_t count, room;
};

static int port, pid, publishers, watchers, stamped, hold, epoll_fd, timer_fd;
static double seconds = 3.0, rate, drain = 10.0;
static long expected = -1;
static struct list bodies, filters;
static struct samples acks, latencies;
static long requests, refused, delivered, opened_count, lost;
static int64_t last_delivery;
static size_t next_body;
static char wire[CARRY + (1 << 20)];

static void die(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* CPU seconds of the server so far, all its threads. */
static double server_seconds(void) {
    char path[64], line[1024];
    unsigned long user, system;
    if (!pid) return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) die(path);
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    char *after_name = strrchr(line, ')');
    if (!after_name || sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
        die("the times of the server");
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static void record(struct samples *s, int64_t ns) {
    if (s->count == s->room) {
        s->room = s->room ? s->room * 2 : 65536;
        s->values = realloc(s->values, s->room * sizeof *s->values);
        if (!s->values) die("memory");
    }
    int64_t us = ns / 1000;
    s->values[s->count++] = us < 0 ? 0 : us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint32_t quantile(struct samples *s, double q) {
    if (!s->count) return 0;
    qsort(s->values, s->count, sizeof *s->values, by_value);
    size_t i = (size_t)(q * (double)s->count);
    return s->values[i < s->count ? i : s->count - 1];
}

/* Each line of the file as a complete HTTP request to the path. */
static struct list load_requests(const char *file, const char *path) {
    struct list l = {0};
    FILE *f = fopen(file, "r");
    if (!f) die(file);
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    while ((n = getline(&line, &room, f)) > 0) {
        if (line[n - 1] == '\n') line[--n] = 0;
        if (!n) continue;
        struct request r = {0};
        int len = asprintf(&r.text,
                           "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
                           "Content-Length: %zd\r\n\r\n%s",
                           path, port, n, line);
        if (len < 0) die("memory");
        r.len = (size_t)len;
        char *mark = strstr(r.text, "###################");
        r.stamp = mark ? (size_t)(mark - r.text) : 0;
        l.items = realloc(l.items, (l.count + 1) * sizeof *l.items);
        if (!l.items) die("memory");
        l.items[l.count++] = r;
    }
    free(line);
    fclose(f);
    if (!l.count) die("no requests in the file");
    return l;
}

static int dial(int nonblocking) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) die("socket");
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) die("connect");
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (nonblocking) fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void watch_for(struct conn *c, uint32_t events, int op) {
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (epoll_ctl(epoll_fd, op, c->fd, &e)) die("epoll_ctl");
}

static void flush(struct conn *c) {
    while (c->out_done < c->out_len) {
        ssize_t n = send(c->fd, c->out + c->out_done, c->out_len - c->out_done, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN) {
                watch_for(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
                return;
            }
            die("send");
        }
        c->out_done += (size_t)n;
    }
}

static void publish(struct conn *c, int64_t due) {
    struct request *r = &bodies.items[next_body++ % bodies.count];
    c->out = r->text;
    if (r->stamp) {
        if (!c->own && !(c->own = malloc(65536))) die("memory");
        if (r->len > 65536) die("a stamped body is too long");
        memcpy(c->own, r->text, r->len);
        char digits[STAMP + 1];
        snprintf(digits, sizeof digits, "%019lld", (long long)due);
        memcpy(c->own + r->stamp, digits, STAMP);
        c->out = c->own;
    }
    c->out_len = r->len;
    c->out_done = 0;
    c->in_len = 0;
    c->busy = 1;
    c->due = due;
    flush(c);
}

/* True once the whole answer of the request is there. */
static int answered(struct conn *c) {
    ssize_t n = recv(c->fd, c->in + c->in_len, sizeof c->in - 1 - c->in_len, 0);
    if (n <= 0) {
        if (n < 0 && errno == EAGAIN) return 0;
        die("a publisher lost its connection");
    }
    c->in_len += (size_t)n;
    c->in[c->in_len] = 0;
    char *head_end = strstr(c->in, "\r\n\r\n");
    if (!head_end) return 0;
    char *length = strcasestr(c->in, "content-length:");
    size_t body = length && length < head_end ? (size_t)atol(length + 15) : 0;
    if (c->in_len < (size_t)(head_end - c->in) + 4 + body) return 0;
    if (strncmp(c->in + 9, "200", 3)) refused++;
    return 1;
}

static void hang_up(struct conn *c) {
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    c->fd = -1;
    lost++;
}

/* Count what a watcher receives. The end of the last read is kept, because a mark may lie across two reads. */
static void receive(struct conn *c) {
    for (;;) {
        memcpy(wire + CARRY - c->in_len, c->in, c->in_len);
        ssize_t n = recv(c->fd, wire + CARRY, sizeof wire - CARRY, 0);
        if (n <= 0) {
            if (n < 0 && errno == EAGAIN) return;
            hang_up(c);
            return;
        }
        int64_t arrived = now_ns();
        char *p = wire + CARRY - c->in_len, *end = wire + CARRY + n;
        size_t tail;
        if (!c->opened) {
            tail = strlen(OPENED) - 1;
            if (memmem(p, (size_t)(end - p), OPENED, strlen(OPENED))) {
                c->opened = 1;
                opened_count++;
                tail = 0;
            }
        } else if (stamped) {
            size_t mark = strlen(STAMP_MARK);
            tail = mark + STAMP - 1;
            while ((p = memmem(p, (size_t)(end - p), STAMP_MARK, mark)) && (size_t)(end - p) >= mark + STAMP) {
                record(&latencies, arrived - atoll(p + mark));
                delivered++;
                last_delivery = arrived;
                p += mark + STAMP;
            }
        } else {
            tail = strlen(MARK) - 1;
            while ((p = memmem(p, (size_t)(end - p), MARK, strlen(MARK)))) {
                delivered++;
                last_delivery = arrived;
                p += strlen(MARK);
            }
        }
        size_t have = c->in_len + (size_t)n;
        c->in_len = have < tail ? have : tail;
        memcpy(c->in, end - c->in_len, c->in_len);
        if ((size_t)n < sizeof wire - CARRY) return;
    }
}

static void on_watcher(struct conn *c, uint32_t events) {
    if (events & EPOLLOUT) {
        watch_for(c, EPOLLIN, EPOLL_CTL_MOD);
        flush(c);
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
}

static void open_watchers(struct conn *all) {
    struct epoll_event events[256];
    int64_t give_up = now_ns() + (int64_t)60e9;
    for (long started = 0; opened_count < watchers;) {
        while (started < watchers && started - opened_count < OPENING) {
            struct conn *c = &all[started];
            struct request *r = &filters.items[(size_t)started % filters.count];
            c->role = WATCHER;
            c->fd = dial(1);
            watch_for(c, EPOLLIN, EPOLL_CTL_ADD);
            c->out = r->text;
            c->out_len = r->len;
            flush(c);
            started++;
        }
        int n = epoll_wait(epoll_fd, events, 256, 1000);
        for (int i = 0; i < n; i++) on_watcher(events[i].data.ptr, events[i].events);
        if (lost || now_ns() > give_up) {
            fprintf(stderr, "load: only %ld of %d watchers could be opened\n", opened_count, watchers);
            exit(1);
        }
    }
}

static void wake_at(int64_t when) {
    struct itimerspec t = {.it_value = {when / 1000000000, when % 1000000000}};
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

static void run(void) {
    struct conn *watching = calloc((size_t)watchers + 1, sizeof *watching);
    struct conn *publishing = calloc((size_t)publishers + 1, sizeof *publishing);
    if (!watching || !publishing) die("memory");
    open_watchers(watching);
    if (hold) {
        char c;
        printf("ready\n");
        fflush(stdout);
        while (read(0, &c, 1) > 0) continue;
        return;
    }
    for (int i = 0; i < publishers; i++) {
        publishing[i].fd = dial(1);
        watch_for(&publishing[i], EPOLLIN, EPOLL_CTL_ADD);
    }
    struct conn timer = {.fd = timer_fd, .role = PUBLISHER};
    if (rate > 0) watch_for(&timer, EPOLLIN, EPOLL_CTL_ADD);
    int64_t start = now_ns(), stop = start + (int64_t)(seconds * 1e9), finished = 0, due = start;
    int64_t gap = rate > 0 ? (int64_t)(1e9 / rate) : 0;
    double cpu = cpu_seconds(), server = server_seconds();
    long waiting = 0; /* publishers with a request out */
    if (rate > 0)
        wake_at(due);
    else
        for (int i = 0; i < publishers; i++, waiting++) publish(&publishing[i], start);
    struct epoll_event events[256];
    for (;;) {
        int n = epoll_wait(epoll_fd, events, 256, 100);
        int64_t now = now_ns();
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (c == &timer) {
                uint64_t ticks;
                if (read(timer_fd, &ticks, sizeof ticks) < 0 && errno != EAGAIN) die("timer");
            } else if (c->role == WATCHER) {
                on_watcher(c, events[i].events);
            } else {
                if (events[i].events & EPOLLOUT) {
                    watch_for(c, EPOLLIN, EPOLL_CTL_MOD);
                    flush(c);
                }
                if (!(events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) || !answered(c)) continue;
                int64_t got = now_ns();
                record(&acks, got - c->due);
                requests++;
                waiting--;
                c->busy = 0;
                finished = got;
                if (rate <= 0 && got < stop) {
                    publish(c, got);
                    waiting++;
                }
            }
        }
        /* Requests that are due and could not go out in time keep the time they were due. */
        if (rate > 0) {
            for (int i = 0; i < publishers && due <= now && due < stop; i++) {
                if (publishing[i].busy) continue;
                publish(&publishing[i], due);
                waiting++;
                due += gap;
            }
            if (due < stop && due > now) wake_at(due);
        }
        if (now < stop || waiting || (rate > 0 && due < stop)) continue;
        if (expected <= 0 || delivered >= requests * expected || now > stop + (int64_t)(drain * 1e9)) break;
    }
    int64_t end = expected > 0 ? (delivered < requests * expected ? now_ns() : last_delivery) : finished;
    double took = (double)(end - start) / 1e9, publishing_took = (double)(finished - start) / 1e9;
    printf("{\"requests\":%ld,\"refused\":%ld,\"request_seconds\":%.6f,\"ack_p50_us\":%u,\"ack_p99_us\":%u,"
           "\"deliveries\":%ld,\"missing\":%ld,\"lost\":%ld,\"seconds\":%.6f,\"delivery_p50_us\":%u,"
           "\"delivery_p99_us\":%u,\"load_cpu\":%.3f,\"server_seconds\":%.2f}\n",
           requests, refused, publishing_took, quantile(&acks, 0.5), quantile(&acks, 0.99), delivered,
           expected > 0 ? requests * expected - delivered : 0, lost, took, quantile(&latencies, 0.5),
           quantile(&latencies, 0.99), (cpu_seconds() - cpu) / (took > 0 ? took : 1), server_seconds() - server);
}

/* One request, read to the end of its stream; chunk marks are skipped over by counting the mark of each event. */
static void replay(void) {
    struct conn c = {.role = WATCHER, .opened = 1};
    c.fd = dial(0);
    struct request *r = &filters.items[0];
    int64_t start = now_ns();
    double cpu = cpu_seconds(), server = server_seconds();
    if (send(c.fd, r->text, r->len, MSG_NOSIGNAL) != (ssize_t)r->len) die("send");
    long bytes = 0;
    size_t kept = 0, mark = strlen(MARK);
    int64_t first = 0, done = 0;
    for (;;) {
        ssize_t n = recv(c.fd, wire + CARRY, sizeof wire - CARRY, 0);
        if (n < 0) die("recv");
        done = now_ns();
        if (!n) break;
        bytes += n;
        char *p = wire + CARRY - kept, *end = wire + CARRY + n;
        int over = n >= 5 && !memcmp(end - 5, "0\r\n\r\n", 5);
        while ((p = memmem(p, (size_t)(end - p), MARK, mark))) {
            delivered++;
            if (!first) first = done;
            p += mark;
        }
        if (over) break;
        size_t have = kept + (size_t)n;
        kept = have < mark - 1 ? have : mark - 1;
        memmove(wire + CARRY - kept, end - kept, kept);
    }
    double took = (double)(done - start) / 1e9;
    printf("{\"deliveries\":%ld,\"bytes\":%ld,\"seconds\":%.6f,\"first_us\":%lld,\"load_cpu\":%.3f,"
           "\"server_seconds\":%.2f}\n",
           delivered, bytes, took, (long long)(first ? (first - start) / 1000 : 0), (cpu_seconds() - cpu) / took,
           server_seconds() - server);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "", *body_file = NULL, *filter_file = NULL;
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--stamped")) {
            stamped = 1;
            continue;
        }
        if (!strcmp(name, "--hold")) {
            hold = 1;
            continue;
        }
        if (++i == argc) die("an option lacks its value");
        const char *value = argv[i];
        if (!strcmp(name, "--port")) port = atoi(value);
        else if (!strcmp(name, "--publishers")) publishers = atoi(value);
        else if (!strcmp(name, "--watchers")) watchers = atoi(value);
        else if (!strcmp(name, "--bodies")) body_file = value;
        else if (!strcmp(name, "--filters")) filter_file = value;
        else if (!strcmp(name, "--seconds")) seconds = atof(value);
        else if (!strcmp(name, "--rate")) rate = atof(value);
        else if (!strcmp(name, "--drain")) drain = atof(value);
        else if (!strcmp(name, "--pid")) pid = atoi(value);
        else if (!strcmp(name, "--deliveries")) expected = atol(value);
        else die("unknown option");
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    epoll_fd = epoll_create1(0);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    int replaying = !strcmp(mode, "replay");
    if (body_file) bodies = load_requests(body_file, "/api/v1/notification");
    if (filter_file) filters = load_requests(filter_file, replaying ? "/api/v1/replay" : "/api/v1/watch");
    if (replaying) replay();
    else if (!strcmp(mode, "run")) run();
    else die("say run or replay");
    return 0;
}
