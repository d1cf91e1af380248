#include "hub/commit.h"

#include <fmt/format.h>

#include "dgc/error.h"
#include "dgc/wire.h"

namespace dgc::hub {

namespace {

nlohmann::json to_json(const std::vector<Part>& parts) {
  nlohmann::json list = nlohmann::json::array();
  for (const Part& part : parts) {
    list.push_back({{"member", part.member},
                    {"sequence", part.sequence},
                    {"base", part.base},
                    {"examples", part.examples},
                    {"factor_bits", bits_of(part.factor)}});
  }
  return list;
}

std::vector<Part> parts_in(const nlohmann::json& head) {
  if (!head.contains("parts") || !head["parts"].is_array()) {
    throw Error(ErrorCode::bad_state, "hub", "commit", "has no list of parts");
  }
  std::vector<Part> parts;
  for (const nlohmann::json& part : head["parts"]) {
    if (!part.is_object()) throw Error(ErrorCode::bad_state, "hub", "commit", "has a bad part");
    parts.push_back({.member = text(part, "member"),
                     .sequence = whole_number(part, "sequence"),
                     .base = whole_number(part, "base"),
                     .examples = whole_number(part, "examples"),
                     .factor = float_of_bits(part, "factor_bits")});
  }
  return parts;
}

}  // namespace

std::uint64_t examples_of(const std::vector<Part>& parts) {
  std::uint64_t sum = 0;
  for (const Part& part : parts) sum += part.examples;
  return sum;
}

Bytes to_bytes(const Inbox& inbox) {
  const std::vector<std::span<const std::byte>> blobs(inbox.messages.begin(), inbox.messages.end());
  return write_packet({{"parts", to_json(inbox.parts)}}, blobs);
}

Inbox inbox_from(std::span<const std::byte> bytes) {
  const Packet packet = read_packet(bytes);
  Inbox inbox{.parts = parts_in(packet.head), .messages = {}};
  if (inbox.parts.size() != packet.blobs.size()) {
    throw Error(
        ErrorCode::bad_count, "hub", "inbox",
        fmt::format("has {} messages of {} members", packet.blobs.size(), inbox.parts.size()));
  }
  for (const auto& blob : packet.blobs) inbox.messages.emplace_back(blob.begin(), blob.end());
  return inbox;
}

Bytes to_bytes(const Commit& commit) {
  nlohmann::json head = {{"round", commit.round},
                         {"lr_bits", bits_of(commit.lr)},
                         {"share_bits", bits_of(commit.share)},
                         {"ratio", commit.ratio},
                         {"parts", to_json(commit.parts)},
                         {"messages", commit.messages.size()}};
  // JSON's numbers are not 64 bits wide everywhere.
  if (commit.parameters) head["parameters"] = fmt::format("{:016x}", *commit.parameters);
  std::vector<std::span<const std::byte>> blobs(commit.messages.begin(), commit.messages.end());
  blobs.emplace_back(commit.buffers);
  return write_packet(head, blobs);
}

Commit commit_from(std::span<const std::byte> bytes) {
  const Packet packet = read_packet(bytes);
  const nlohmann::json& head = packet.head;
  Commit commit{.round = whole_number(head, "round"),
                .lr = float_of_bits(head, "lr_bits"),
                .share = float_of_bits(head, "share_bits"),
                .ratio = number(head, "ratio"),
                .parts = parts_in(head),
                .messages = {},
                .buffers = {},
                .parameters = {}};
  const std::uint64_t messages = whole_number(head, "messages");
  if (messages + 1 != packet.blobs.size()) {
    throw Error(ErrorCode::bad_count, "hub", "commit",
                fmt::format("says {} messages, and has {}", messages, packet.blobs.size()));
  }
  for (std::size_t i = 0; i < messages; ++i) {
    commit.messages.emplace_back(packet.blobs[i].begin(), packet.blobs[i].end());
  }
  commit.buffers.assign(packet.blobs.back().begin(), packet.blobs.back().end());
  if (head.contains("parameters")) {
    const std::string digits = text(head, "parameters");
    std::size_t used = 0;
    try {
      commit.parameters = std::stoull(digits, &used, 16);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used != 16 || digits.size() != 16) {
      throw Error(ErrorCode::bad_state, "hub", "commit", "has a hash that is none");
    }
  }
  return commit;
}

}  // namespace dgc::hub
