// Proving to have the secret: what a stranger can try on one connection.
#include "engine/introduction.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/bytes.h"

namespace dgc::detail {
namespace {

using Bytes = std::vector<std::byte>;
using State = Introduction::State;

Introduction connector(std::string secret, std::string purpose = "test", int from = 3) {
  return Introduction::connector(std::move(secret), std::move(purpose), from, 1);
}

Introduction acceptor(std::string secret, std::string purpose = "test") {
  return Introduction::acceptor(std::move(secret), std::move(purpose),
                                [](int from, int to) { return from < 4 && to == 1; });
}

/// What was said, in its order.
std::vector<Bytes> talk(Introduction& a, Introduction& b) {
  std::vector<Bytes> said{a.begin()};
  for (Introduction* hears = &b; hears->wants() > 0 && !said.back().empty();
       hears = hears == &a ? &b : &a) {
    said.push_back(hears->take(said.back()));
  }
  return said;
}

TEST(Introduction, WhoHasTheSecretIsProved) {
  for (const char* const secret : {"", "one", "a longer one, with spaces"}) {
    Introduction a = connector(secret);
    Introduction b = acceptor(secret);
    const auto said = talk(a, b);
    EXPECT_EQ(a.state(), State::proved);
    EXPECT_EQ(b.state(), State::proved);
    EXPECT_EQ(b.from(), 3);
    for (const Bytes& message : said) {
      EXPECT_TRUE(*secret == '\0' || text_of(message).find(secret) == std::string_view::npos);
    }
  }
}

TEST(Introduction, AnotherSecretPurposeOrRankIsRefusedOnBothEnds) {
  const auto refused = [](Introduction a, Introduction b) {
    talk(a, b);
    EXPECT_EQ(a.state(), State::refused);
    EXPECT_EQ(b.state(), State::refused);
  };
  refused(connector("one"), acceptor("two"));
  refused(connector(""), acceptor("two"));
  refused(connector("one"), acceptor(""));
  refused(connector("one", "store"), acceptor("one", "mesh"));
  refused(connector("one", "test", 4), acceptor("one"));
  refused(connector("one", "test", -1 - 4), acceptor("one", "test2"));
}

// The acceptor tells nothing that depends on the secret before the connector has proved itself.
TEST(Introduction, WhoCannotProveItselfGetsNoCode) {
  Introduction a = connector("wrong");
  Introduction b = acceptor("right");
  const Bytes verdict = talk(a, b).back();
  EXPECT_TRUE(std::ranges::all_of(verdict, [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(Introduction, AnOldConversationIsOfNoUse) {
  Introduction a = connector("one");
  Introduction b = acceptor("one");
  const auto said = talk(a, b);
  ASSERT_EQ(said.size(), 5u);  // with the silence at the end
  // To another acceptor, as the connector.
  Introduction again = acceptor("one");
  again.take(said[0]);
  again.take(said[2]);
  EXPECT_EQ(again.state(), State::refused);
  // To another connector, as the acceptor.
  Introduction other = connector("one");
  other.take(said[1]);
  other.take(said[3]);
  EXPECT_EQ(other.state(), State::foreign);
}

// A stranger that answers with what it was asked, or lets another owner of the secret answer.
TEST(Introduction, WhatOneEndSaysProvesNothingToTheSameEnd) {
  Introduction a = connector("one");
  a.take(Bytes(a.begin()).size() == a.wants() ? a.begin() : Bytes(a.wants()));
  EXPECT_EQ(a.state(), State::foreign);

  // Between two connectors: the proof of one is no verdict for the other.
  Introduction first = connector("one");
  Introduction acceptor_side = acceptor("one");
  const Bytes challenge = acceptor_side.take(first.begin());
  const Bytes proof = first.take(challenge);
  Bytes verdict{std::byte{1}};
  append(verdict, proof);
  first.take(verdict);
  EXPECT_EQ(first.state(), State::foreign);
}

TEST(Introduction, OtherProtocolsAndOddLengthsAreForeign) {
  const std::string http = "GET / HTTP/1.1\r\nHost: example\r\nAccept: everything\r\n\r\n";
  Introduction b = acceptor("one");
  EXPECT_TRUE(b.take(bytes_of(http).first(b.wants())).empty());
  EXPECT_EQ(b.state(), State::foreign);
  EXPECT_EQ(b.wants(), 0u);

  for (const std::size_t size : {0, 1, 47, 49, 1000}) {
    Introduction c = acceptor("one");
    EXPECT_TRUE(c.take(Bytes(size)).empty());
    EXPECT_EQ(c.state(), State::foreign);
    EXPECT_TRUE(c.take(connector("one").begin()).empty());
    EXPECT_EQ(c.state(), State::foreign);
  }
}

TEST(Introduction, EachBitOfTheConversationCounts) {
  for (std::size_t bit = 0; bit < 48 * 8; ++bit) {
    Introduction a = connector("one");
    Introduction b = acceptor("one");
    Bytes hello = a.begin();
    hello[bit / 8] ^= std::byte(1 << (bit % 8));
    const Bytes challenge = b.take(hello);
    if (challenge.empty()) continue;
    b.take(a.take(challenge));
    EXPECT_EQ(b.state(), State::refused) << bit;
  }
}

TEST(Seal, EachMessageHasACodeOfItsOwnInEachDirection) {
  Introduction a = connector("one");
  Introduction b = acceptor("one");
  talk(a, b);
  Seal sends = a.outgoing();
  Seal receives = b.incoming();
  const auto message = bytes_of("set a key");
  const Mac first = sends.next(message);
  EXPECT_EQ(receives.next(message), first);
  // The same again, from the other end, or another text.
  EXPECT_NE(receives.next(message), first);
  EXPECT_NE(a.incoming().next(message), first);
  EXPECT_EQ(a.incoming().next(message), b.outgoing().next(message));
  EXPECT_NE(a.outgoing().next(bytes_of("set a kez")), first);
}

TEST(Mac, IsHmacSha256OfLengthsAndParts) {
  // By Python: hmac.new(b"k", pack("<Q2sQ1s", 2, b"ab", 1, b"c"), "sha256"), little-endian,
  // unpadded.
  std::string digits;
  for (const std::byte byte : mac(bytes_of("k"), {bytes_of("ab"), bytes_of("c")})) {
    digits += fmt::format("{:02x}", static_cast<int>(byte));
  }
  EXPECT_EQ(digits, "548db5622d6139684af6d4386fd39c15e707273ca1c9ce5b1d2932308e086224");
  EXPECT_NE(mac(bytes_of("k"), {bytes_of("ab"), bytes_of("c")}),
            mac(bytes_of("k"), {bytes_of("a"), bytes_of("bc")}));
  EXPECT_NE(mac(bytes_of("k"), {}), mac(bytes_of("k"), {bytes_of("")}));
  EXPECT_NE(mac({}, {bytes_of("a")}), mac(bytes_of("k"), {bytes_of("a")}));
  EXPECT_NE(fresh_nonce(), fresh_nonce());
  EXPECT_NE(new_secret(), new_secret());
  EXPECT_EQ(new_secret().size(), 32u);
}

}  // namespace
}  // namespace dgc::detail
