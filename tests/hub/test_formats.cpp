// What travels and what is stored: packets, commits, terms, replicas. Whatever is damaged is
// refused or harmless.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>

#include "hub/replica.h"
#include "support/helpers.h"
#include "toy.h"

namespace dgc {
namespace {

using hub::Bytes;
using hub::Commit;
using hub::Packet;
using hub::Replica;
using hub::Terms;
using test::code_of;
using test::kToyModel;

void fix_checksum(Bytes& bytes) {
  const std::uint64_t hash = XXH64(bytes.data(), bytes.size() - 8, 0);
  std::memcpy(bytes.data() + bytes.size() - 8, &hash, sizeof hash);
}

/// As it arrives: numbers have other types before they were text.
nlohmann::json parsed(const nlohmann::json& json) { return nlohmann::json::parse(json.dump()); }

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Bytes some_packet() {
  const Bytes first = bytes_of("first"), nothing, third = bytes_of("3");
  const std::span<const std::byte> blobs[] = {first, nothing, third};
  return hub::write_packet({{"a", 1}, {"list", {1, 2.5, "x"}}, {"u", UINT64_MAX}}, blobs);
}

/// A message as a member makes it.
Bytes some_message(const Terms& terms, float value = 1.0f) {
  State state(kToyModel, 0, 1, terms.member_options().needs_velocity());
  Compressor compressor(state, terms.member_options());
  compressor.change_schedule(Schedule(0.1));
  std::vector<std::vector<float>> gradients;
  std::vector<Gradient> list;
  for (const TensorSpec& spec : kToyModel) {
    std::vector<float>& g = gradients.emplace_back(spec.elements());
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = value * static_cast<float>(i % 13);
  }
  for (std::size_t t = 0; t < gradients.size(); ++t) list.push_back({t, gradients[t]});
  Bytes message(compressor.bound(list));
  message.resize(compressor.compress(list, message));
  compressor.commit();
  return message;
}

Commit some_commit(const Replica& replica) {
  const Terms terms;
  Commit commit{.round = replica.round() + 1, .lr = 0.1f, .share = 1.0f / 64.0f, .ratio = 0.001};
  for (const char* name : {"a", "b-2"}) {
    commit.parts.push_back({name, UINT64_MAX - 1, 3, 32, 0.5f});
    commit.messages.push_back(some_message(terms));
  }
  commit.buffers.assign(replica.buffers().size() * sizeof(float), std::byte{0});
  commit.parameters = replica.hash();
  return commit;
}

TEST(HubPacket, RoundTrip) {
  const Bytes bytes = some_packet();
  const Packet packet = hub::read_packet(bytes);
  EXPECT_EQ(packet.head["u"], UINT64_MAX);
  ASSERT_EQ(packet.blobs.size(), 3u);
  EXPECT_EQ(Bytes(packet.blob(0).begin(), packet.blob(0).end()), bytes_of("first"));
  EXPECT_TRUE(packet.blob(1).empty());
  EXPECT_EQ(code_of([&] { packet.blob(3); }), ErrorCode::truncated);
  const Bytes empty = hub::write_packet(nlohmann::json::object());
  EXPECT_TRUE(hub::read_packet(empty).blobs.empty());
}

TEST(HubPacket, EveryTruncationAndEveryFlipIsRefused) {
  const Bytes bytes = some_packet();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    // Not a byte more than it has, for the address sanitizer.
    const Bytes part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(code_of([&] { hub::read_packet(part); }), ErrorCode::ok) << size;
  }
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes damaged = bytes;
      damaged[at] ^= static_cast<std::byte>(1 << bit);
      EXPECT_NE(code_of([&] { hub::read_packet(damaged); }), ErrorCode::ok) << at;
      fix_checksum(damaged);
      code_of([&] { hub::read_packet(damaged); });  // anything but a crash
    }
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_NE(code_of([&] { hub::read_packet(longer); }), ErrorCode::ok);
}

TEST(HubPacket, EachErrorByItsName) {
  const auto with = [](std::size_t at, std::uint8_t value) {
    Bytes bytes = some_packet();
    bytes[at] = std::byte{value};
    fix_checksum(bytes);
    return code_of([&] { hub::read_packet(bytes); });
  };
  EXPECT_EQ(with(0, 'X'), ErrorCode::bad_magic);
  EXPECT_EQ(with(4, 2), ErrorCode::bad_version);
  EXPECT_EQ(with(7, 1), ErrorCode::reserved_bits);
  EXPECT_EQ(with(11, 1), ErrorCode::bad_length);
  EXPECT_EQ(with(15, 1), ErrorCode::bad_length);
  EXPECT_EQ(with(16, 200), ErrorCode::truncated);
  EXPECT_EQ(with(16, 4), ErrorCode::trailing_bytes);
  for (const char* head : {"[]", "1", "{", "", "\xff", "{\"a\":1e999}"}) {
    Bytes bytes = hub::write_packet(nlohmann::json::object());
    const Bytes text = bytes_of(head);
    bytes.erase(bytes.begin() + 16, bytes.begin() + 18);
    bytes.insert(bytes.begin() + 16, text.begin(), text.end());
    bytes[8] = static_cast<std::byte>(text.size());
    fix_checksum(bytes);
    EXPECT_EQ(code_of([&] { hub::read_packet(bytes); }), ErrorCode::bad_state) << head;
  }
  nlohmann::json deep = 1;
  for (int i = 0; i < hub::kDeepestHead + 2; ++i) deep = nlohmann::json{{"a", deep}};
  const Bytes bytes = hub::write_packet(deep);
  EXPECT_EQ(code_of([&] { hub::read_packet(bytes); }), ErrorCode::bad_state);
}

TEST(HubPacket, FieldsAreWhatTheyShouldBe) {
  const nlohmann::json head = parsed({{"n", 7},
                                      {"minus", -1},
                                      {"half", 0.5},
                                      {"text", "x"},
                                      {"yes", true},
                                      {"nothing", nullptr},
                                      {"inf", hub::bits_of(std::numeric_limits<float>::infinity())},
                                      {"wide", 1ull << 32}});
  EXPECT_EQ(hub::whole_number(head, "n"), 7u);
  EXPECT_EQ(hub::number(head, "half"), 0.5);
  EXPECT_EQ(hub::text(head, "text"), "x");
  EXPECT_TRUE(hub::flag(head, "yes"));
  for (const char* name : {"minus", "half", "text", "yes", "nothing", "absent"}) {
    EXPECT_EQ(code_of([&] { hub::whole_number(head, name); }), ErrorCode::bad_state) << name;
  }
  for (const char* name : {"n", "absent", "nothing"}) {
    EXPECT_EQ(code_of([&] { hub::text(head, name); }), ErrorCode::bad_state) << name;
    EXPECT_EQ(code_of([&] { hub::flag(head, name); }), ErrorCode::bad_state) << name;
  }
  for (const char* name : {"text", "absent", "nothing"}) {
    EXPECT_EQ(code_of([&] { hub::number(head, name); }), ErrorCode::bad_state) << name;
  }
  for (const char* name : {"inf", "wide", "half"}) {
    EXPECT_EQ(code_of([&] { hub::float_of_bits(head, name); }), ErrorCode::bad_state) << name;
  }
}

TEST(HubCommit, RoundTripKeepsEveryBit) {
  const Replica replica(kToyModel, test::kToyBuffers, {});
  const Commit commit = some_commit(replica);
  const Bytes bytes = to_bytes(commit);
  const Commit again = hub::commit_from(bytes);
  EXPECT_EQ(again.round, commit.round);
  EXPECT_EQ(hub::bits_of(again.lr), hub::bits_of(commit.lr));
  EXPECT_EQ(hub::bits_of(again.share), hub::bits_of(commit.share));
  EXPECT_EQ(again.ratio, commit.ratio);
  EXPECT_EQ(again.parts, commit.parts);
  EXPECT_EQ(again.messages, commit.messages);
  EXPECT_EQ(again.buffers, commit.buffers);
  EXPECT_EQ(again.parameters, commit.parameters);
  EXPECT_EQ(hub::examples_of(again.parts), 64u);
  EXPECT_EQ(to_bytes(again), bytes);
}

TEST(HubCommit, TheInboxOfAHubThatSelectsRoundTrips) {
  const Replica replica(kToyModel, test::kToyBuffers, {});
  const Commit commit = some_commit(replica);
  hub::Inbox inbox{.parts = commit.parts, .messages = commit.messages};
  const Bytes bytes = to_bytes(inbox);
  const hub::Inbox again = hub::inbox_from(bytes);
  EXPECT_EQ(again.parts, inbox.parts);
  EXPECT_EQ(again.messages, inbox.messages);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    Bytes damaged = bytes;
    damaged[at] ^= std::byte{0x11};
    EXPECT_NE(code_of([&] { hub::inbox_from(damaged); }), ErrorCode::ok) << at;
  }
  inbox.messages.pop_back();
  EXPECT_EQ(code_of([&] { hub::inbox_from(to_bytes(inbox)); }), ErrorCode::bad_count);
}

TEST(HubCommit, DamageIsRefusedOrChangesNothingThatItShouldNot) {
  Replica replica(kToyModel, test::kToyBuffers, {});
  const Bytes good = to_bytes(some_commit(replica));
  const Bytes before = replica.snapshot();
  for (std::size_t at = 0; at < good.size(); ++at) {
    Bytes damaged = good;
    damaged[at] ^= std::byte{0x11};
    EXPECT_NE(code_of([&] { hub::commit_from(damaged); }), ErrorCode::ok) << at;
    fix_checksum(damaged);
    Replica copy(kToyModel, test::kToyBuffers, {});
    const ErrorCode code = code_of([&] { copy.apply(hub::commit_from(damaged)); });
    if (code != ErrorCode::ok) {
      EXPECT_EQ(copy.snapshot(), before) << at << ": half applied";
    } else {
      EXPECT_EQ(copy.round(), 1u);
      EXPECT_EQ(code_of([&] { replica.load(copy.snapshot()); }), ErrorCode::ok) << at;
    }
  }
}

TEST(HubReplica, TakesTheNextCommitAloneAndOnlyWhereParametersAreTheSame) {
  Replica replica(kToyModel, test::kToyBuffers, {});
  const Commit first = some_commit(replica);
  const auto refused = [&](const std::function<void(Commit&)>& change) {
    const Bytes before = replica.snapshot();
    Commit commit = some_commit(replica);
    change(commit);
    const ErrorCode code = code_of([&] { replica.apply(commit); });
    EXPECT_EQ(replica.snapshot(), before);
    return code;
  };
  EXPECT_EQ(refused([](Commit& c) { c.round = 2; }), ErrorCode::wrong_order);
  EXPECT_EQ(refused([](Commit& c) { c.round = 0; }), ErrorCode::wrong_order);
  EXPECT_EQ(refused([](Commit& c) { ++*c.parameters; }), ErrorCode::diverged);
  EXPECT_EQ(refused([](Commit& c) { c.messages.pop_back(); }), ErrorCode::bad_count);
  EXPECT_EQ(refused([](Commit& c) { c.buffers.pop_back(); }), ErrorCode::state_mismatch);
  EXPECT_NE(refused([](Commit& c) { c.messages[1].pop_back(); }), ErrorCode::ok);
  EXPECT_EQ(refused([](Commit& c) {
              const float nan = std::numeric_limits<float>::quiet_NaN();
              std::memcpy(c.buffers.data(), &nan, sizeof nan);
            }),
            ErrorCode::nonfinite_value);
  replica.apply(first);
  EXPECT_EQ(code_of([&] { replica.apply(first); }), ErrorCode::wrong_order) << "twice";
  Replica other({TensorSpec::of("w", {3, 3})}, test::kToyBuffers, {});
  Commit foreign = first;
  foreign.parameters.reset();
  EXPECT_EQ(code_of([&] { other.apply(foreign); }), ErrorCode::shape_mismatch);
}

TEST(HubReplica, SnapshotsAreTakenOverWholeOrNotAtAll) {
  const Terms terms{.momentum_correction = MomentumCorrection::off};
  Replica replica(kToyModel, test::kToyBuffers, terms);
  for (int i = 0; i < 3; ++i) replica.apply(some_commit(replica));
  const Bytes extra = bytes_of("extra");
  const std::span<const std::byte> extras[] = {extra};
  const Bytes snapshot = replica.snapshot({{"n", 1}}, extras);
  Replica copy(kToyModel, test::kToyBuffers, terms);
  const Packet packet = copy.load(snapshot);
  EXPECT_EQ(packet.head["more"]["n"], 1);
  EXPECT_EQ(packet.blob(Replica::first_extra()).size(), extra.size());
  EXPECT_EQ(copy.hash(), replica.hash());
  copy.apply(some_commit(copy));
  replica.apply(some_commit(replica));
  EXPECT_EQ(copy.snapshot(), replica.snapshot()) << "its momentum is in the snapshot, too";

  const Bytes before = copy.snapshot();
  for (std::size_t at = 0; at < snapshot.size(); at += 3) {
    Bytes damaged = snapshot;
    damaged[at] ^= std::byte{0x40};
    EXPECT_NE(code_of([&] { copy.load(damaged); }), ErrorCode::ok);
  }
  EXPECT_EQ(copy.snapshot(), before);
  Replica other_terms(kToyModel, test::kToyBuffers, {});
  EXPECT_EQ(code_of([&] { other_terms.load(snapshot); }), ErrorCode::state_mismatch);
  Replica other_model({kToyModel[0]}, test::kToyBuffers, terms);
  EXPECT_EQ(code_of([&] { other_model.load(snapshot); }), ErrorCode::state_mismatch);
}

TEST(HubTermsText, RoundTripAndEveryFieldIsNeeded) {
  Terms terms{.down = hub::Down::select, .momentum_correction = MomentumCorrection::global};
  terms.momentum = 0.1f;
  terms.weight_decay = 1e-4f;
  const nlohmann::json json = parsed(to_json(terms));
  EXPECT_EQ(to_json(hub::terms_from(json)), json);
  for (const auto& [key, value] : json.items()) {
    nlohmann::json less = json;
    less.erase(key);
    EXPECT_EQ(code_of([&] { hub::terms_from(less); }), ErrorCode::bad_state) << key;
    for (const nlohmann::json& wrong :
         {nlohmann::json(nullptr), nlohmann::json(-1), nlohmann::json::array(),
          nlohmann::json("nonsense"), nlohmann::json(UINT64_MAX), nlohmann::json(0.5)}) {
      if (wrong.type() == value.type() || (key == "clip_norm" && wrong.is_number())) continue;
      less[key] = wrong;
      if (wrong.is_number_unsigned() && value.is_number()) continue;
      EXPECT_NE(code_of([&] { hub::terms_from(less); }), ErrorCode::ok) << key << wrong;
    }
  }
  EXPECT_EQ(code_of([] { hub::terms_from(nlohmann::json::array()); }), ErrorCode::bad_state);
  const auto refused = [](Terms wrong) { return code_of([&] { wrong.check(); }); };
  EXPECT_EQ(refused({.momentum_correction = MomentumCorrection::global}),
            ErrorCode::invalid_argument);
  EXPECT_EQ(refused({.residual_decay = 0.9f}), ErrorCode::invalid_argument);
  EXPECT_EQ(refused({.momentum = 1.0f}), ErrorCode::invalid_argument);
  EXPECT_EQ(refused({.save_every = 0}), ErrorCode::invalid_argument);
}

TEST(HubTermsText, ModelsAreBounded) {
  const nlohmann::json json = parsed(hub::to_json(kToyModel));
  EXPECT_EQ(hub::model_from(json, test::kToySize), kToyModel);
  const auto code = [](const nlohmann::json& model, std::uint64_t most = 1'000'000) {
    return code_of([&] { hub::model_from(parsed(model), most); });
  };
  EXPECT_EQ(code(json, test::kToySize - 1), ErrorCode::bad_state);
  const auto shaped = [](const nlohmann::json& shape) {
    return nlohmann::json::array({{{"name", "w"}, {"shape", shape}, {"dense", false}}});
  };
  EXPECT_EQ(code(shaped({2, 3})), ErrorCode::ok);
  for (const nlohmann::json& shape :
       {nlohmann::json{-1}, nlohmann::json{0.5}, nlohmann::json(3), nlohmann::json{UINT64_MAX},
        nlohmann::json{1 << 20, 1 << 20, 1 << 20}, nlohmann::json{UINT64_MAX, 0}}) {
    EXPECT_EQ(code(shaped(shape)), ErrorCode::bad_state) << shape;
  }
  for (const char* key : {"name", "shape", "dense"}) {
    nlohmann::json less = json;
    less[0].erase(key);
    EXPECT_EQ(code(less), ErrorCode::bad_state) << key;
  }
  EXPECT_EQ(code(nlohmann::json::object()), ErrorCode::bad_state);
  EXPECT_EQ(code({1}), ErrorCode::bad_state);
}

}  // namespace
}  // namespace dgc
