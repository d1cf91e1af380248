// One thread does everything: a request is small work, and the hub needs no locks. What costs is
// waiting, and that is asynchronous. A connection has one request at a time.
//
// What a stranger can do is bounded: so many connections, so much time for a handshake and for a
// request, and no byte of a body is read before its token is known to be good.
#include "hub/server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <limits>
#include <list>
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
constexpr auto kHandshake = 10s;
constexpr auto kHeader = 15s;
/// Of a connection that has shown a good token: a member may compute for long.
constexpr auto kIdle = 3600s;
/// For a body: so long, and a second more for each so many bytes.
constexpr auto kBody = 30s;
constexpr std::size_t kSlowest = 16 * 1024;
/// Before a refusal: guessing tokens shall take time.
constexpr auto kRefusalDelay = 500ms;

/// Of everything but the page.
constexpr const char* kNothingAllowed = "default-src 'none'; frame-ancestors 'none'";

double seconds_now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
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

  Hub& hub;
  ServerOptions options;
  std::size_t connections = 0;
  std::map<std::string, std::size_t> strangers;
  std::size_t memory = 0;
  std::optional<asio::ssl::context> tls;
  // After what connections refer to: they end with it.
  asio::io_context context{1};
  tcp::acceptor acceptor{context};
  asio::steady_timer ticker{context};
};

/// From its acceptance to its end; kept alive by what is under way on it.
class Server::Impl::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Impl& server, std::string origin)
      : server_(server), origin_(std::move(origin)), timer_(server.context) {
    ++server_.connections;
    ++server_.strangers[origin_];
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
    const auto found = server_.strangers.find(origin_);
    if (found != server_.strangers.end() && --found->second == 0) server_.strangers.erase(found);
  }

  Impl& server_;
  std::string origin_;
  asio::steady_timer timer_;
  std::size_t claimed_ = 0;  // of the server's memory
  bool known_ = false;       // has shown a good token
};

template <typename Stream>
class Server::Impl::ConnectionOver : public Connection {
 public:
  template <typename... More>
  ConnectionOver(Impl& server, std::string origin, tcp::socket socket, More&... more)
      : Connection(server, std::move(origin)), stream_(std::move(socket), more...) {}

  ~ConnectionOver() override {
    if (waiting_ != 0) this->server_.hub.give_up(waiting_);
  }

  void start() override {
    if constexpr (std::is_same_v<Stream, Secure>) {
      lowest().expires_after(kHandshake);
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
  beast::tcp_stream& lowest() { return beast::get_lowest_layer(stream_); }

  /// The connection ends when nothing refers to it any more.
  void refuse(const std::string& why) {
    this->server_.hub.count_refused(this->origin_, why, seconds_now());
  }

  void read_header() {
    parser_.emplace();
    parser_->header_limit(kLongestHeader);
    // Until it is known who asks, no body is read. (Boost 1.74 takes `none` for a limit of
    // nothing.)
    parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
    lowest().expires_after(this->known_ ? std::chrono::seconds(kIdle)
                                        : std::chrono::seconds(kHeader));
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = self()](ErrorOf error, std::size_t) { self->header_came(error); });
  }

  void header_came(ErrorOf error) {
    if (error) {
      // Members close without ceremony; who was never more than a stranger is counted.
      if (!this->known_ && error != http::error::end_of_stream) refuse(error.message());
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
    if (limit == 0) return handle();  // an error, and nobody reads the body
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
    lowest().expires_after(kBody + std::chrono::seconds(*length / kSlowest));
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
    if (request_.method == "GET" && request_.path == "/") return show_page();
    const auto reply = [self = self()](Response response) {
      self->waiting_ = 0;
      const bool refused = response.status == 401;
      if (!refused) return self->answer(std::move(response), /*close=*/false);
      self->refuse("a token that is unknown or revoked");
      self->timer_.expires_after(kRefusalDelay);
      self->timer_.async_wait([self, response = std::move(response)](ErrorOf) mutable {
        self->answer(std::move(response), /*close=*/true);
      });
    };
    note_session();
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
  void note_session() {
    if (request_.method != "POST" || request_.body.empty()) return;
    try {
      const Packet packet = read_packet(request_.body);
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
    const auto bytes = std::as_bytes(std::span(status_page().html));
    answer({.type = "text/html; charset=utf-8",
            .body = std::make_shared<const Bytes>(bytes.begin(), bytes.end())},
           /*close=*/false);
  }

  void answer(Response response, bool close) {
    answered_ = true;
    if (lowest().socket().is_open()) {
      ErrorOf ignored;
      lowest().socket().cancel(ignored);  // watch()
    }
    if (response.status == 200 && !request_.token.empty()) this->forget_stranger();
    this->server_.memory -= std::exchange(this->claimed_, 0);
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
    answer_->keep_alive(!close);
    answer_->content_length(body_->size());
    answer_->body().data = const_cast<std::byte*>(body_->data());  // it is only read
    answer_->body().size = body_->size();
    answer_->body().more = false;
    serializer_.emplace(*answer_);
    lowest().expires_after(kBody + std::chrono::seconds(body_->size() / kSlowest));
    http::async_write(stream_, *serializer_, [self = self(), close](ErrorOf error, std::size_t) {
      self->body_.reset();
      if (error) return self->lost();
      if (close) return self->lost();
      self->read_header();
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
    const auto found = strangers.find(origin);
    if (connections >= options.connections ||
        (found != strangers.end() && found->second >= options.strangers)) {
      hub.count_refused(origin, "too many connections", seconds_now());
      socket.close(ignored);
    } else {
      socket.set_option(tcp::no_delay(true), ignored);
      socket.set_option(asio::socket_base::keep_alive(true), ignored);
      std::shared_ptr<Connection> connection;
      if (tls) {
        connection =
            std::make_shared<ConnectionOver<Secure>>(*this, origin, std::move(socket), *tls);
      } else {
        connection = std::make_shared<ConnectionOver<Plain>>(*this, origin, std::move(socket));
      }
      connection->start();
    }
    accept();
  });
}

void Server::Impl::plan_tick() {
  const double now = seconds_now();
  const double next = hub.tick(now);
  ticker.expires_after(std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::max(0.0, next - now))));
  ticker.async_wait([this](ErrorOf error) {
    if (!error) plan_tick();
  });
}

Server::Server(Hub& hub, ServerOptions options)
    : impl_(std::make_unique<Impl>(hub, std::move(options))) {}

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
