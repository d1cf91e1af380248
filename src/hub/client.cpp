// Everything is asynchronous underneath, so that a request can be given up at any moment; outside,
// ask() simply takes its time.
//
// Any request may be sent twice: hub and Member recognise what they have seen. So a connection that
// turns out to be dead is made again without asking anybody.
#include "hub/client.h"

#include <fmt/format.h>
#include <openssl/ssl.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <charconv>
#include <chrono>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "dgc/error.h"
#include "dgc/version.h"
#include "hub/tls.h"

namespace dgc::hub {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using ErrorOf = boost::system::error_code;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kConnect = 10s;
/// For what is small, and for an answer of a hub that makes members wait 25 s at most.
constexpr auto kAnswer = 60s;
/// More for a long body: a second for each so many bytes.
constexpr std::size_t kSlowest = std::size_t{16} << 10;
constexpr auto kLook = 100ms;
constexpr std::uint64_t kMostAnswer = std::uint64_t{16} << 30;

constexpr double kFirstPause = 0.5, kLongestPause = 30.0;

using Plain = beast::tcp_stream;
using Secure = beast::ssl_stream<beast::tcp_stream>;

[[noreturn]] void refuse(const std::string& subject, const std::string& problem,
                         const std::string& hint) {
  throw Error(ErrorCode::configuration_mismatch, "join", subject, problem, hint);
}

std::string name_of(const HubPlace& place) {
  return fmt::format("{}://{}:{}", place.tls ? "https" : "http", place.host, place.port);
}

/// What the hub says, or something between that answers in its place.
std::string reason_of(const Answer& answer) {
  try {
    if (const auto error = error_in(read_packet(answer.body))) {
      return fmt::format("hub: {} {}", error->subject(), error->problem());
    }
  } catch (const Error&) {  // no hub's words
  }
  return fmt::format("the hub answers {}", answer.status);
}

}  // namespace

HubPlace place_of(const std::string& url, bool plain) {
  const auto wrong = [&](const std::string& problem, const std::string& hint = {}) {
    throw Error(ErrorCode::invalid_argument, "join", url, problem,
                hint.empty() ? "such as https://hub.example.org:7077" : hint);
  };
  HubPlace place;
  std::string_view rest = url;
  if (rest.starts_with("http://")) {
    if (!plain) wrong("is not encrypted", "use https://, or say --insecure");
    place.tls = false;
    rest.remove_prefix(7);
  } else if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else {
    wrong("is no address of a hub");
  }
  if (const auto end = rest.find_first_of("/#?"); end != std::string_view::npos) {
    if (rest.find_first_not_of('/', end) != std::string_view::npos) {
      wrong("has something after the port");
    }
    rest = rest.substr(0, end);
  }
  std::string_view port;
  if (rest.starts_with('[')) {
    const auto end = rest.find(']');
    if (end == std::string_view::npos) wrong("has no ']'");
    port = rest.substr(end + 1);
    place.host = std::string(rest.substr(1, end - 1));
  } else {
    const auto colon = rest.find(':');
    place.host = std::string(rest.substr(0, colon));
    if (colon != std::string_view::npos) port = rest.substr(colon);
  }
  if (place.host.empty()) wrong("has no host");
  if (port.empty()) return place;
  port.remove_prefix(1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), place.port);
  if (error != std::errc{} || end != port.data() + port.size() || place.port == 0) {
    wrong("has no port after the colon");
  }
  return place;
}

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  ErrorOf error;
  const auto address = asio::ip::make_address(host, error);
  return !error && address.is_loopback();
}

struct Client::Impl {
  Impl(HubPlace the_place, std::string the_token)
      : place(std::move(the_place)), token(std::move(the_token)) {
    if (place.tls) tls.emplace(client_context(!place.pin.empty()));
  }

  HubPlace place;
  std::string token;
  std::optional<asio::ssl::context> tls;
  asio::io_context context{1};
  std::unique_ptr<Plain> plain;
  std::unique_ptr<Secure> secure;

  bool connected() const { return plain || secure; }
  beast::tcp_stream& lowest() { return secure ? beast::get_lowest_layer(*secure) : *plain; }

  void disconnect() noexcept {
    plain.reset();
    secure.reset();
  }

  /// Starts one operation by `begin(handler)` and runs until it has ended. Throws Unreachable.
  template <typename Begin>
  void do_one(const char* what, const Stop& stop, Begin begin) {
    std::optional<ErrorOf> ended;
    begin([&ended](ErrorOf error, auto&&...) { ended = error; });
    bool given_up = false;
    while (!ended) {
      context.restart();
      context.run_for(kLook);
      if (ended || given_up || !stop()) continue;
      given_up = true;  // its handler is still to come
      cancel();
    }
    if (given_up) throw Unreachable("given up");
    if (*ended) {
      const bool late = *ended == beast::error::timeout;
      // What a hub with TLS does where it hears none.
      if (*ended == http::error::end_of_stream && !place.tls) {
        throw Unreachable("the connection was ended: has the hub TLS? Then it is https://");
      }
      throw Unreachable(fmt::format("{}: {}", what, late ? "no answer in time" : ended->message()));
    }
  }

  void cancel() {
    resolver.cancel();
    if (connected()) {
      ErrorOf ignored;
      lowest().socket().close(ignored);
    }
  }

  void connect(const Stop& stop) {
    tcp::resolver::results_type found;
    do_one("no such host", stop, [&](auto handler) {
      resolver.async_resolve(place.host, std::to_string(place.port),
                             [&found, handler](ErrorOf error, tcp::resolver::results_type all) {
                               found = std::move(all);
                               handler(error);
                             });
    });
    if (tls) {
      secure = std::make_unique<Secure>(context, *tls);
    } else {
      plain = std::make_unique<Plain>(context);
    }
    lowest().expires_after(kConnect);
    do_one("no connection", stop, [&](auto handler) { lowest().async_connect(found, handler); });
    ErrorOf ignored;
    lowest().socket().set_option(tcp::no_delay(true), ignored);
    lowest().socket().set_option(asio::socket_base::keep_alive(true), ignored);
    if (secure) shake_hands(stop);
  }

  void shake_hands(const Stop& stop) {
    SSL* const ssl = secure->native_handle();
    ErrorOf ignored;
    asio::ip::make_address(place.host, ignored);
    const bool has_name = static_cast<bool>(ignored);  // a number is no name
    if (has_name) SSL_set_tlsext_host_name(ssl, place.host.c_str());
    if (place.pin.empty()) {
      secure->set_verify_callback(asio::ssl::host_name_verification(place.host));
    }
    lowest().expires_after(kConnect);
    try {
      do_one("no TLS 1.3 handshake", stop, [&](auto handler) {
        secure->async_handshake(asio::ssl::stream_base::client, handler);
      });
    } catch (const Unreachable&) {
      const long result = SSL_get_verify_result(ssl);
      if (place.pin.empty() && result != X509_V_OK) {
        disconnect();
        refuse(name_of(place),
               fmt::format("its certificate is not trusted: {}",
                           X509_verify_cert_error_string(result)),
               "give --pin, as the hub prints it");
      }
      throw;
    }
    if (place.pin.empty()) return;
    const std::string shown = pin_of_peer(ssl);
    if (same_pin(shown, place.pin)) return;
    disconnect();
    refuse(name_of(place), fmt::format("shows another key, {}", shown),
           "is it the hub that you mean? Its first lines have the right --pin");
  }

  template <typename Stream>
  Answer exchange(Stream& stream, const Ask& ask, const Stop& stop) {
    http::request<http::vector_body<std::byte>> request(http::string_to_verb(ask.method), ask.path,
                                                        11);
    request.set(http::field::host, fmt::format("{}:{}", place.host, place.port));
    request.set(http::field::user_agent, "dgc " DGC_VERSION);
    request.set(http::field::authorization, "Bearer " + token);
    request.body() = ask.body;
    request.prepare_payload();
    lowest().expires_after(kAnswer + std::chrono::seconds(ask.body.size() / kSlowest));
    do_one("the request was not taken", stop,
           [&](auto handler) { http::async_write(stream, request, handler); });
    beast::flat_buffer buffer;
    http::response_parser<http::vector_body<std::byte>> parser;
    parser.body_limit(kMostAnswer);
    lowest().expires_after(kAnswer);
    do_one("no answer", stop,
           [&](auto handler) { http::async_read_header(stream, buffer, parser, handler); });
    const std::uint64_t length = parser.content_length().value_or(0);
    lowest().expires_after(kAnswer + std::chrono::seconds(length / kSlowest));
    if (!parser.is_done()) {
      do_one("the answer did not come to its end", stop,
             [&](auto handler) { http::async_read(stream, buffer, parser, handler); });
    }
    lowest().expires_never();
    Answer answer{.status = static_cast<int>(parser.get().result_int())};
    const bool keeps = parser.get().keep_alive();
    answer.body = std::move(parser.get().body());
    if (!keeps) disconnect();
    return answer;
  }

  Answer ask(const Ask& ask, const Stop& stop) {
    for (bool fresh = !connected();; fresh = true) {
      try {
        if (fresh) connect(stop);
        const auto begun = Clock::now();
        Answer answer = secure ? exchange(*secure, ask, stop) : exchange(*plain, ask, stop);
        answer.seconds = std::chrono::duration<double>(Clock::now() - begun).count();
        return answer;
      } catch (const Unreachable&) {
        disconnect();
        // The hub, or something between, may have ended a connection that was idle for long.
        if (fresh || stop()) throw;
      }
    }
  }

  tcp::resolver resolver{context};
};

Client::Client(HubPlace place, std::string token)
    : impl_(std::make_unique<Impl>(std::move(place), std::move(token))) {}
Client::~Client() = default;

Answer Client::ask(const Ask& ask, const Stop& stop) { return impl_->ask(ask, stop); }
void Client::set_token(std::string token) { impl_->token = std::move(token); }
void Client::disconnect() noexcept { impl_->disconnect(); }

Bytes Courier::carry(const Ask& ask, const Client::Stop& stop) {
  static thread_local std::minstd_rand chance{std::random_device{}()};
  double pause = kFirstPause;
  while (!stop()) {
    std::string why;
    try {
      Answer answer = client_.ask(ask, stop);
      if (answer.status == 429 || answer.status >= 500) {
        why = reason_of(answer);
      } else {
        if (std::exchange(failing_, false)) say_("the hub is there again");
        seconds_ = answer.seconds;
        return std::move(answer.body);
      }
    } catch (const Unreachable& error) {
      if (stop()) break;
      why = error.what();
    }
    failing_ = true;
    const double wait = pause * std::uniform_real_distribution<>(0.75, 1.25)(chance);
    say_(fmt::format("{}; trying again in {:.1f} s", why, wait));
    const auto until = Clock::now() + std::chrono::duration<double>(wait);
    while (!stop() && Clock::now() < until) std::this_thread::sleep_for(kLook / 2);
    pause = std::min(kLongestPause, 2.0 * pause);
  }
  return {};
}

}  // namespace dgc::hub
