// One thread does everything: a request is small work, and the hub needs no locks. What costs is
// waiting, and that is asynchronous. A connection has one request at a time.
//
// What a stranger can do is bounded: so many connections, so much time for a handshake and for a
// request, and no byte of a body is read before its token is known to be good.
#include "hub/server.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <boost/asio/ip/network_v6.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <limits>
#include <map>

#include "dgc/error.h"
#include "dgc/version.h"
#include "hub/page.h"

namespace dgc::hub {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using ErrorOf = boost::system::error_code;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::size_t kLongestHeader = 8192;
/// After a refusal so many bytes of a body that nobody wants are thrown away, so that who sends it
/// gets to read why: a connection that is just closed loses the answer.
constexpr std::size_t kLingerBytes = std::size_t{64} << 20;

/// Of everything but the page.
constexpr const char* kNothingAllowed = "default-src 'none'; frame-ancestors 'none'";

Clock::duration seconds(double count) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
}

double seconds_now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// Whose connections are counted together: an address, or the network that one household or one
/// machine has of IPv6.
std::string group_of(const asio::ip::address& address) {
  if (address.is_v4()) return address.to_string();
  const auto v6 = address.to_v6();
  if (v6.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, v6).to_string();
  return asio::ip::network_v6(v6, 64).canonical().to_string();
}

/// A machine that lost its power or its network says nothing more, whether it was waiting or
/// computing. The kernels find out by themselves, within two minutes; usual are hours.
void watch_for_silence(tcp::socket& socket) {
  constexpr int kOn = 1, kIdle = 60, kBetween = 15, kTimes = 4;
  constexpr unsigned kUnanswered = 1000u * (kIdle + kTimes * kBetween);  // ms, of what was sent
  const int handle = socket.native_handle();
  ::setsockopt(handle, SOL_SOCKET, SO_KEEPALIVE, &kOn, sizeof kOn);
  ::setsockopt(handle, IPPROTO_TCP, TCP_KEEPIDLE, &kIdle, sizeof kIdle);
  ::setsockopt(handle, IPPROTO_TCP, TCP_KEEPINTVL, &kBetween, sizeof kBetween);
  ::setsockopt(handle, IPPROTO_TCP, TCP_KEEPCNT, &kTimes, sizeof kTimes);
  ::setsockopt(handle, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnanswered, sizeof kUnanswered);
}

using Plain = beast::tcp_stream;
using Secure = beast::ssl_stream<beast::tcp_stream>;

}  // namespace

struct Server::Impl {
  Impl(Hub& the_hub, ServerOptions the_options);

  class Connection;
  template <typename Stream>
  class ConnectionOver;

  void accept();
  void plan_tick();
  /// Counts an answer's bytes, once for all who get the same. False where there is no room.
  bool claim(const std::shared_ptr<const Bytes>& body);
  void release(const std::shared_ptr<const Bytes>& body);

  Hub& hub;
  ServerOptions options;
  std::size_t connections = 0;
  std::map<std::string, std::size_t> strangers;
  std::size_t memory = 0;
  std::map<const Bytes*, std::size_t> answers;  // that are being sent, and to how many
  std::optional<asio::ssl::context> tls;
  // After what connections refer to: they end with it.
  asio::io_context context{1};
  tcp::acceptor acceptor{context};
  asio::steady_timer ticker{context};
};

/// From its acceptance to its end; kept alive by what is under way on it.
class Server::Impl::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Impl& server, std::string origin, std::string group)
      : server_(server),
        origin_(std::move(origin)),
        group_(std::move(group)),
        timer_(server.context) {
    ++server_.connections;
    ++server_.strangers[group_];
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  virtual ~Connection() {
    --server_.connections;
    forget_stranger();
    server_.memory -= claimed_;
  }
  virtual void start() = 0;

 protected:
  void forget_stranger() {
    if (known_) return;
    known_ = true;
    const auto found = server_.strangers.find(group_);
    if (found != server_.strangers.end() && --found->second == 0) server_.strangers.erase(found);
  }

  Impl& server_;
  std::string origin_, group_;
  asio::steady_timer timer_;
  std::size_t claimed_ = 0;  // of the server's memory
  bool known_ = false;       // has shown a good token
};

template <typename Stream>
class Server::Impl::ConnectionOver : public Connection {
 public:
  template <typename... More>
  ConnectionOver(Impl& server, std::string origin, std::string group, tcp::socket socket,
                 More&... more)
      : Connection(server, std::move(origin), std::move(group)),
        stream_(std::move(socket), more...) {}

  ~ConnectionOver() override {
    if (body_) this->server_.release(body_);
    if (waiting_ != 0) this->server_.hub.give_up(waiting_);
  }

  void start() override {
    if constexpr (std::is_same_v<Stream, Secure>) {
      lowest().expires_after(seconds(patience().handshake));
      stream_.async_handshake(asio::ssl::stream_base::server, [self = self()](ErrorOf error) {
        if (error) return self->refuse("no TLS 1.3 handshake");
        self->read_header();
      });
    } else {
      read_header();
    }
  }

 private:
  std::shared_ptr<ConnectionOver> self() {
    return std::static_pointer_cast<ConnectionOver>(this->shared_from_this());
  }
  const ServerPatience& patience() const { return this->server_.options.patience; }
  Clock::duration time_for(std::uint64_t bytes) const {
    return seconds(patience().body) + std::chrono::seconds(bytes / patience().slowest);
  }
  beast::tcp_stream& lowest() { return beast::get_lowest_layer(stream_); }

  /// The connection ends when nothing refers to it any more.
  void refuse(const std::string& why) {
    this->server_.hub.count_refused(this->origin_, why, seconds_now());
  }

  void read_header() {
    parser_.emplace();
    parser_->header_limit(kLongestHeader);
    // Until it is known who asks, no body is read. (Boost 1.74 takes no limit as a limit of none.)
    parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
    lowest().expires_after(seconds(this->known_ ? patience().idle : patience().header));
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = self()](ErrorOf error, std::size_t) { self->header_came(error); });
  }

  void header_came(ErrorOf error) {
    if (error) {
      // Members close without ceremony, and browsers open connections that they never use. A
      // stranger who began to say something is counted.
      if (!this->known_ && parser_->got_some()) refuse(error.message());
      return lost();
    }
    const auto& message = parser_->get();
    request_ = {};
    request_.method = std::string(message.method_string());
    request_.path = std::string(message.target());
    request_.origin = this->origin_;
    if (const auto mark = request_.path.find('?'); mark != std::string::npos) {
      request_.query = request_.path.substr(mark + 1);
      request_.path.resize(mark);
    }
    const auto authorization = message[http::field::authorization];
    if (authorization.starts_with("Bearer ")) {
      request_.token = std::string(authorization.substr(7));
    }
    if (request_.method == "GET") return handle();
    const std::size_t limit =
        request_.method == "POST" ? this->server_.hub.body_limit(request_) : 0;
    if (limit == 0) return handle();  // an error
    this->forget_stranger();
    const auto length = parser_->content_length();
    if (!length || *length > limit) {
      return answer(problem(413, Error(ErrorCode::limit_exceeded, "hub", "body",
                                       fmt::format("has no length, or more than {} bytes", limit))),
                    /*close=*/true);
    }
    if (this->server_.memory + *length > this->server_.options.memory) {
      return answer(problem(503, Error(ErrorCode::limit_exceeded, "hub", "memory",
                                       "too many requests are under way", "try again")),
                    /*close=*/true);
    }
    this->claimed_ = static_cast<std::size_t>(*length);
    this->server_.memory += this->claimed_;
    parser_->body_limit(limit);
    lowest().expires_after(time_for(*length));
    http::async_read(stream_, buffer_, *parser_, [self = self()](ErrorOf e, std::size_t) {
      if (e) {
        self->refuse("a body that did not come: " + e.message());
        return self->lost();
      }
      self->request_.body = std::move(self->parser_->get().body());
      self->handle();
    });
  }

  void handle() {
    lowest().expires_never();
    if (request_.path == "/") return show_page();
    const auto reply = [self = self()](Response response) {
      self->waiting_ = 0;
      if (response.status == 200 && self->request_.path == "/v1/join") {
        self->note_session(*response.body);
      }
      const bool refused = response.status == 401;
      if (!refused) {
        // Nothing that a stranger says wrong is followed by more of it.
        const bool close = !self->known_ && response.status >= 400;
        return self->answer(std::move(response), close);
      }
      self->refuse("a token that is unknown or revoked");
      self->timer_.expires_after(seconds(self->patience().refusal));
      self->timer_.async_wait([self, response = std::move(response)](ErrorOf) mutable {
        self->answer(std::move(response), /*close=*/true);
      });
    };
    if (request_.method == "POST") note_session(request_.body);
    answered_ = false;
    const std::uint64_t waits = this->server_.hub.handle(request_, seconds_now(), reply);
    request_.body = {};
    if (!answered_ && waits != 0) {
      waiting_ = waits;
      watch();
    }
    this->server_.plan_tick();
  }

  /// The session that speaks over this connection: when it ends, rounds need not wait.
  void note_session(const Bytes& body) {
    if (body.empty()) return;
    try {
      const Packet packet = read_packet(body);
      const auto found = packet.head.find("session");
      if (found != packet.head.end() && found->is_string()) session_ = found->get<std::string>();
    } catch (const Error&) {  // the hub says what is wrong with it
    }
  }

  /// While a request waits, its sender says nothing: whatever can be read is its end.
  void watch() {
    lowest().socket().async_wait(tcp::socket::wait_read, [self = self()](ErrorOf error) {
      if (error || self->waiting_ == 0) return;
      self->server_.hub.give_up(std::exchange(self->waiting_, 0));
      self->lost();
    });
  }

  void lost() {
    if (session_.empty()) return;
    this->server_.hub.connection_lost(std::exchange(session_, {}), seconds_now());
    this->server_.plan_tick();
  }

  void show_page() {
    request_.token.clear();  // nobody has looked at it
    if (request_.method != "GET") {
      Response wrong =
          problem(405, Error(ErrorCode::invalid_argument, "hub", "/", "is asked by GET"));
      wrong.allow = "GET";
      return answer(std::move(wrong), /*close=*/true);
    }
    const auto bytes = std::as_bytes(std::span(status_page().html));
    answer({.type = "text/html; charset=utf-8",
            .body = std::make_shared<const Bytes>(bytes.begin(), bytes.end())},
           /*close=*/false);
  }

  void answer(Response response, bool close) {
    answered_ = true;
    if (request_.method == "HEAD") close = true;  // who asks so expects no body
    if (!parser_->is_done()) close = true;        // a body that nobody has read is no request
    if (lowest().socket().is_open()) {
      ErrorOf ignored;
      lowest().socket().cancel(ignored);  // watch()
    }
    if (response.status == 200 && !request_.token.empty()) this->forget_stranger();
    this->server_.memory -= std::exchange(this->claimed_, 0);
    if (!this->server_.claim(response.body)) {
      response = problem(503, Error(ErrorCode::limit_exceeded, "hub", "memory",
                                    "too many answers are under way", "try again"));
      this->server_.claim(response.body);
    }
    body_ = response.body;
    answer_.emplace();
    answer_->version(11);
    answer_->result(static_cast<unsigned>(response.status));
    answer_->set(http::field::server, "dgc " DGC_VERSION);
    answer_->set(http::field::content_type, response.type);
    answer_->set(http::field::cache_control, "no-store");
    answer_->set("X-Content-Type-Options", "nosniff");
    answer_->set("Referrer-Policy", "no-referrer");
    answer_->set("Cross-Origin-Opener-Policy", "same-origin");
    answer_->set("Cross-Origin-Resource-Policy", "same-origin");
    answer_->set("Content-Security-Policy", response.type.starts_with("text/html")
                                                ? status_page().policy
                                                : std::string(kNothingAllowed));
    if (!response.allow.empty()) answer_->set(http::field::allow, response.allow);
    answer_->keep_alive(!close);
    answer_->content_length(body_->size());
    answer_->body().data = const_cast<std::byte*>(body_->data());  // it is only read
    answer_->body().size = body_->size();
    answer_->body().more = false;
    serializer_.emplace(*answer_);
    lowest().expires_after(time_for(body_->size()));
    http::async_write(stream_, *serializer_, [self = self(), close](ErrorOf error, std::size_t) {
      self->server_.release(std::exchange(self->body_, nullptr));
      if (error) return self->lost();
      if (close) return self->say_goodbye();
      self->read_header();
    });
  }

  void say_goodbye() {
    lost();
    lowest().expires_after(seconds(patience().linger));
    if constexpr (std::is_same_v<Stream, Secure>) {
      // Ends early, with an error, where the other end is still sending its body.
      stream_.async_shutdown([self = self()](ErrorOf) { self->throw_away(0); });
    } else {
      throw_away(0);
    }
  }

  void throw_away(std::size_t so_far) {
    if (so_far == 0) {
      ErrorOf ignored;
      lowest().socket().shutdown(tcp::socket::shutdown_send, ignored);
    }
    buffer_.clear();
    lowest().async_read_some(buffer_.prepare(65536),
                             [self = self(), so_far](ErrorOf error, std::size_t more) {
                               if (!error && so_far + more < kLingerBytes)
                                 self->throw_away(so_far + more);
                             });
  }

  Stream stream_;
  beast::flat_buffer buffer_{kLongestHeader + 65536};
  std::optional<http::request_parser<http::vector_body<std::byte>>> parser_;
  Request request_;
  std::string session_;
  std::uint64_t waiting_ = 0;
  bool answered_ = false;
  std::shared_ptr<const Bytes> body_;
  std::optional<http::response<http::buffer_body>> answer_;
  std::optional<http::response_serializer<http::buffer_body>> serializer_;
};

Server::Impl::Impl(Hub& the_hub, ServerOptions the_options)
    : hub(the_hub), options(std::move(the_options)) {
  if (options.identity) tls.emplace(server_context(*options.identity));
  // As many connections as are allowed, and files beside.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur > 128) {
    options.connections =
        std::min<std::size_t>(options.connections, static_cast<std::size_t>(limit.rlim_cur) - 64);
  }
  const std::string where = fmt::format("{}:{}", options.address, options.port);
  ErrorOf error;
  const auto address = asio::ip::make_address(options.address, error);
  if (error) {
    throw Error(ErrorCode::invalid_argument, "serve", "--address " + options.address,
                "is no IP address", "such as 0.0.0.0 for all interfaces, or 127.0.0.1");
  }
  const tcp::endpoint endpoint(address, options.port);
  acceptor.open(endpoint.protocol());
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    throw Error(ErrorCode::io, "serve", where, "cannot listen there: " + error.message(),
                "choose another --port or --address");
  }
  accept();
}

void Server::Impl::accept() {
  acceptor.async_accept([this](ErrorOf error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {
      // Out of files, say: those that end make room.
      ticker.expires_after(100ms);
      return ticker.async_wait([this](ErrorOf) {
        accept();
        plan_tick();
      });
    }
    ErrorOf ignored;
    const tcp::endpoint peer = socket.remote_endpoint(ignored);
    const std::string origin = ignored ? std::string("?") : peer.address().to_string();
    const std::string group = ignored ? std::string("?") : group_of(peer.address());
    const auto found = strangers.find(group);
    if (connections >= options.connections ||
        (found != strangers.end() && found->second >= options.strangers)) {
      hub.count_refused(origin, "too many connections", seconds_now());
      socket.close(ignored);
    } else {
      socket.set_option(tcp::no_delay(true), ignored);
      watch_for_silence(socket);
      std::shared_ptr<Connection> connection;
      if (tls) {
        connection =
            std::make_shared<ConnectionOver<Secure>>(*this, origin, group, std::move(socket), *tls);
      } else {
        connection =
            std::make_shared<ConnectionOver<Plain>>(*this, origin, group, std::move(socket));
      }
      connection->start();
    }
    accept();
  });
}

bool Server::Impl::claim(const std::shared_ptr<const Bytes>& body) {
  const auto known = answers.find(body.get());
  if (known == answers.end()) {
    // Small ones always have room: what says so is one of them.
    if (body->size() > kLongestHeader && memory + body->size() > options.memory) return false;
    memory += body->size();
  }
  ++answers[body.get()];
  return true;
}

void Server::Impl::release(const std::shared_ptr<const Bytes>& body) {
  const auto known = answers.find(body.get());
  if (--known->second != 0) return;
  memory -= body->size();
  answers.erase(known);
}

void Server::Impl::plan_tick() {
  const double now = seconds_now();
  const double next = hub.tick(now);
  ticker.expires_after(seconds(std::max(0.0, next - now)));
  ticker.async_wait([this](ErrorOf error) {
    if (!error) plan_tick();
  });
}

Server::Server(Hub& hub, ServerOptions options)
    : impl_(std::make_unique<Impl>(hub, std::move(options))) {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  hub.set_clock(std::chrono::duration<double>(since_1970).count() - seconds_now());
}

Server::~Server() {
  // Answers that wait in the hub refer to connections, and those to the server.
  impl_->hub.give_up_all();
  ErrorOf ignored;
  impl_->acceptor.close(ignored);
}

std::uint16_t Server::port() const noexcept {
  ErrorOf ignored;
  return impl_->acceptor.local_endpoint(ignored).port();
}

void Server::run(const std::function<bool()>& stop) {
  impl_->plan_tick();
  while (!stop()) impl_->context.run_for(100ms);
}

}  // namespace dgc::hub
