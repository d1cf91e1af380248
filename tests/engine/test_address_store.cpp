// The store at an address: a map that all ranks see, and that strangers neither change nor stall.
#include "dgc/address_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "engine/bytes.h"
#include "engine/sealed_store.h"
#include "engine/store_protocol.h"
#include "engine/store_server.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
using detail::Address;
using detail::bytes_of;
using detail::Connection;
using detail::Introduction;
using Clock = std::chrono::steady_clock;

const Address kAnyPort = detail::resolve("127.0.0.1", 0).front();

std::uint16_t free_port() { return Address::of(detail::listen_at(kAnyPort)).port(); }

std::string text(const std::optional<std::vector<std::byte>>& value) {
  return value ? std::string(detail::text_of(*value)) : "nothing";
}

Connection connect_to(const Address& address) {
  detail::Socket socket = detail::begin_connect(address);
  pollfd one{socket.get(), POLLOUT, 0};
  EXPECT_EQ(::poll(&one, 1, 10'000), 1);
  EXPECT_EQ(detail::connect_error(socket, address), 0);
  return Connection(std::move(socket));
}

/// Whether the other end closes the connection. It is allowed to say something before.
bool is_closed(Connection& connection) {
  const auto deadline = Clock::now() + 60s;
  return !connection.wait_for(1'000'000, deadline) && Clock::now() < deadline;
}

/// A member that speaks the protocol by hand.
struct Member {
  explicit Member(const Address& address, const std::string& secret = "s")
      : connection(connect_to(address)),
        introduction(Introduction::connector(secret, detail::kStorePurpose, 1, 0)) {
    connection.send(introduction.begin());
    while (introduction.state() == Introduction::State::going) {
      if (!connection.wait_for(introduction.wants(), Clock::now() + 10s)) return;
      connection.send(introduction.take(connection.in()));
      connection.clear_in();
    }
    outgoing.emplace(introduction.outgoing());
    incoming.emplace(introduction.incoming());
  }

  bool proved() const { return introduction.state() == Introduction::State::proved; }

  std::optional<detail::Status> ask(std::span<const std::byte> request) {
    detail::send_sealed(connection, *outgoing, request);
    const auto deadline = Clock::now() + 10s;
    std::span<const std::byte> answer;
    if (!connection.wait_for(4, deadline) ||
        !connection.wait_for(detail::message_size(connection), deadline) ||
        !detail::open_sealed(connection, *incoming, answer)) {
      return std::nullopt;
    }
    const auto status = static_cast<detail::Status>(answer[0]);
    connection.clear_in();
    return status;
  }
  std::optional<detail::Status> set(const std::string& key, const std::string& value) {
    std::vector<std::byte> request{std::byte{1}};
    detail::append_number(request, static_cast<std::uint16_t>(key.size()));
    detail::append(request, bytes_of(key));
    detail::append(request, bytes_of(value));
    return ask(request);
  }

  Connection connection;
  Introduction introduction;
  std::optional<detail::Seal> outgoing;
  std::optional<detail::Seal> incoming;
};

TEST(AddressStore, IsAMapThatAllSee) {
  for (const char* const secret : {"", "s"}) {
    const std::uint16_t port = free_port();
    const auto zero = make_address_store("127.0.0.1", port, 0, 2, 20s, secret);
    const auto one = make_address_store("127.0.0.1", port, 1, 2, 20s, secret);
    EXPECT_EQ(text(one->try_get("a/b.0")), "nothing");
    EXPECT_EQ(text(one->get("a/b.0", 20ms)), "nothing");
    zero->set("a/b.0", bytes_of("first"));
    EXPECT_EQ(text(one->try_get("a/b.0")), "first");
    one->set("a/b.0", bytes_of(""));
    EXPECT_EQ(text(zero->try_get("a/b.0")), "");
    one->remove("a/b.0");
    one->remove("a/b.0");
    EXPECT_EQ(text(zero->try_get("a/b.0")), "nothing");
    std::jthread later([&] { zero->set("late", bytes_of("there")); });
    EXPECT_EQ(text(one->get("late", 20s)), "there");
    later.join();
    const std::string large(detail::kLongestValue, 'x');
    one->set("large", bytes_of(large));
    EXPECT_EQ(text(zero->try_get("large")), large);
    EXPECT_THROW(one->set("larger", bytes_of(large + "x")), Error);
    EXPECT_THROW(one->try_get(std::string(detail::kLongestKey + 1, 'k')), Error);
    EXPECT_EQ(text(zero->try_get("large")), large);
  }
}

TEST(AddressStore, ListensWhereItWasTold) {
  const auto store = make_address_store("127.0.0.1", free_port(), 0, 2, 20s, "");
  EXPECT_FALSE(store->is_open_to_strangers());
  const detail::StoreServer server(kAnyPort, "");
  EXPECT_EQ(server.address().host(), "127.0.0.1");
}

std::string refusal(std::uint16_t port, const std::string& secret) {
  try {
    // An hour: it is told at once.
    make_address_store("127.0.0.1", port, 1, 2, 1h, secret);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(AddressStore, AnotherSecretIsToldAtOnce) {
  detail::StoreServer closed(kAnyPort, "right");
  for (const char* const secret : {"", "wrong"}) {
    const std::string message = refusal(closed.address().port(), secret);
    EXPECT_NE(message.find("DGC_SECRET"), std::string::npos) << message;
    EXPECT_NE(message.find(closed.address().text()), std::string::npos) << message;
  }
  detail::StoreServer open(kAnyPort, "");
  EXPECT_NE(refusal(open.address().port(), "some").find("DGC_SECRET"), std::string::npos);
}

TEST(AddressStore, SomethingElseAtTheAddressIsTold) {
  const detail::Socket listener = detail::listen_at(kAnyPort);
  std::jthread other([&] {
    pollfd one{listener.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&one, 1, 20'000), 1);
    Connection connection(detail::accept_from(listener));
    connection.send(bytes_of("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"));
    connection.wait_for(1000, Clock::now() + 20s);
  });
  const std::string message = refusal(Address::of(listener).port(), "s");
  EXPECT_NE(message.find("MASTER_PORT"), std::string::npos) << message;
}

TEST(AddressStore, NobodyThereAndATakenPortAreErrors) {
  const std::uint16_t port = free_port();
  const auto code = [&](int rank) {
    try {
      make_address_store("127.0.0.1", port, rank, 2, 100ms);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(port)), std::string::npos);
      return error.code();
    }
    return ErrorCode::ok;
  };
  EXPECT_EQ(code(1), ErrorCode::io);
  const auto store = make_address_store("127.0.0.1", port, 0, 2, 20s);
  EXPECT_EQ(code(0), ErrorCode::io);
}

TEST(AddressStore, IsGoneWithItsServer) {
  const std::uint16_t port = free_port();
  auto zero = make_address_store("127.0.0.1", port, 0, 2, 20s);
  const auto one = make_address_store("127.0.0.1", port, 1, 2, 20s);
  zero.reset();
  EXPECT_THROW(one->try_get("key"), Error);
  EXPECT_THROW(one->try_get("key"), Error);
  one->remove("key");
}

TEST(StoreServer, StrangersChangeAndStallNothing) {
  detail::StoreServer server(kAnyPort, "s");
  const Address address = server.address();
  std::vector<Connection> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(connect_to(address));
    if (i % 3 == 0) continue;
    const std::string words = i % 3 == 1 ? std::string(1, '\0') : std::string(40, '\xff');
    silent.back().send(bytes_of(words));
    silent.back().flush();
  }
  for (int i = 0; i < 1000; ++i) connect_to(address);
  const auto http = [&] {
    Connection connection = connect_to(address);
    connection.send(bytes_of("GET /set?key=dgc/failed.1 HTTP/1.1\r\nHost: here\r\n\r\n"));
    return is_closed(connection);
  };
  EXPECT_TRUE(http());
  Member member(address);
  ASSERT_TRUE(member.proved());
  EXPECT_EQ(member.set("key", "value"), detail::Status::ok);
  // Only so many of them are kept.
  std::size_t open = 0;
  for (Connection& connection : silent) open += connection.flush() && connection.read(1);
  EXPECT_LE(open, detail::StoreLimits{}.strangers);
  EXPECT_EQ(text(make_address_store("127.0.0.1", address.port(), 1, 2, 20s, "s")->try_get("key")),
            "value");
}  // and the destructor does not wait for those who are still connected

TEST(StoreServer, AStrangerHasLittleTime) {
  detail::StoreServer server(kAnyPort, "s", {.patience = 50ms});
  Connection silent = connect_to(server.address());
  EXPECT_TRUE(is_closed(silent));
  // A member that stops in the middle of a message, too; but not one that is silent.
  Member half(server.address());
  Member quiet(server.address());
  half.connection.send(bytes_of("\x10"));
  EXPECT_TRUE(is_closed(half.connection));
  EXPECT_EQ(quiet.set("key", "value"), detail::Status::ok);
}

TEST(StoreServer, MessagesThatAreWrongEndTheConnection) {
  // An hour: it is not the time that ends them.
  detail::StoreServer server(kAnyPort, "s", {.patience = 1h});
  const auto closed_after = [&](std::span<const std::byte> bytes) {
    Member member(server.address());
    EXPECT_TRUE(member.proved());
    member.connection.send(bytes);
    return is_closed(member.connection);
  };
  std::vector<std::byte> huge;
  detail::append_number(huge, std::uint32_t{0xffffffff});
  EXPECT_TRUE(closed_after(huge));
  std::vector<std::byte> unsealed;
  detail::append_number(unsealed, std::uint32_t{4});
  unsealed.resize(4 + 4 + sizeof(detail::Mac));
  EXPECT_TRUE(closed_after(unsealed));
  // What another connection has said.
  Member member(server.address());
  std::vector<std::byte> request{std::byte{2}, std::byte{1}, std::byte{0}, std::byte{'k'}};
  std::vector<std::byte> sealed;
  detail::append_number(sealed, std::uint32_t{4});
  detail::append(sealed, request);
  detail::append(sealed, member.outgoing->next(request));
  EXPECT_TRUE(closed_after(sealed));
  // And the same twice.
  Member twice(server.address());
  EXPECT_EQ(twice.set("k", "v"), detail::Status::ok);
  detail::Seal from_the_start = twice.introduction.outgoing();
  detail::send_sealed(twice.connection, from_the_start, request);
  EXPECT_TRUE(is_closed(twice.connection));
}

TEST(StoreServer, RequestsThatMakeNoSenseAreAnswered) {
  detail::StoreServer server(kAnyPort, "s");
  Member member(server.address());
  const auto ask = [&](std::vector<int> numbers) {
    std::vector<std::byte> request;
    for (const int number : numbers) request.push_back(std::byte(number));
    return member.ask(request);
  };
  using detail::Status;
  EXPECT_EQ(ask({}), Status::malformed);
  EXPECT_EQ(ask({1, 0}), Status::malformed);
  EXPECT_EQ(ask({1, 0xff, 0xff, 'k'}), Status::malformed);
  EXPECT_EQ(ask({0, 1, 0, 'k'}), Status::malformed);
  EXPECT_EQ(ask({9, 1, 0, 'k'}), Status::malformed);
  EXPECT_EQ(ask({2, 1, 0, 'k'}), Status::absent);
  EXPECT_EQ(ask({3, 1, 0, 'k'}), Status::absent);
}

TEST(StoreServer, KeepsNoMoreThanItsLimits) {
  detail::StoreServer server(kAnyPort, "s", {.members = 2, .keys = 3, .bytes = 100});
  using detail::Status;
  Member member(server.address());
  EXPECT_EQ(member.set("a", std::string(80, 'x')), Status::ok);
  EXPECT_EQ(member.set("b", std::string(30, 'x')), Status::full);
  EXPECT_EQ(member.set("a", "short"), Status::ok);
  EXPECT_EQ(member.set("b", std::string(30, 'x')), Status::ok);
  EXPECT_EQ(member.set("c", "x"), Status::ok);
  EXPECT_EQ(member.set("d", "x"), Status::full);
  EXPECT_EQ(member.set("c", "y"), Status::ok);
  Member second(server.address());
  EXPECT_TRUE(second.proved());
  EXPECT_FALSE(Member(server.address()).proved());
}

TEST(SealedStore, ValuesOfStrangersAreNotThere) {
  const std::uint16_t port = free_port();
  const auto open = make_address_store("127.0.0.1", port, 0, 1, 20s);
  const auto sealed = detail::seal_store(open, "s");
  sealed->set("dgc/failed.1", bytes_of("cause"));
  EXPECT_EQ(text(sealed->try_get("dgc/failed.1")), "cause");
  EXPECT_EQ(text(detail::seal_store(open, "other")->try_get("dgc/failed.1")), "nothing");
  // A value of another key, or of one's own making.
  open->set("dgc/failed.2", *open->try_get("dgc/failed.1"));
  EXPECT_EQ(text(sealed->try_get("dgc/failed.2")), "nothing");
  open->set("dgc/failed.1", bytes_of("made up"));
  EXPECT_EQ(text(sealed->try_get("dgc/failed.1")), "nothing");
  EXPECT_EQ(detail::seal_store(open, ""), open);
}

}  // namespace
}  // namespace dgc
