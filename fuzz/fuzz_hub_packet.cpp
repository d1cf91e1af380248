// What hub and members send each other and store: anything may be read, and what can be read is
// written again as it was.
#include "hub/replica.h"
#include "support.h"

namespace {

using namespace dgc;
using fuzz::outcome;
using fuzz::require;
using hub::Bytes;

const std::vector<TensorSpec> kModel = {TensorSpec::of("w", {16, 4}), TensorSpec::of("b", {5})};
const std::vector<TensorSpec> kBuffers = {TensorSpec::of("mean", {3})};

void check_commit(std::span<const std::byte> bytes) {
  hub::Commit commit;
  if (outcome([&] { commit = hub::commit_from(bytes); }) != ErrorCode::ok) return;
  const Bytes written = to_bytes(commit);
  const hub::Commit again = hub::commit_from(written);
  require(again.parts == commit.parts && again.messages == commit.messages &&
              again.buffers == commit.buffers && again.parameters == commit.parameters &&
              again.round == commit.round && hub::bits_of(again.lr) == hub::bits_of(commit.lr),
          "a commit is the same after it was written");
  for (const hub::Down down : {hub::Down::forward, hub::Down::select}) {
    const hub::Terms terms{.down = down};
    hub::Replica replica(kModel, kBuffers, terms);
    const Bytes before = replica.snapshot();
    if (outcome([&] { replica.apply(commit); }) != ErrorCode::ok) {
      require(replica.snapshot() == before, "a commit that is refused changes nothing");
    } else {
      require(replica.round() == 1, "a commit is a round");
    }
  }
}

void check(std::span<const std::byte> bytes) {
  hub::Packet packet;
  if (outcome([&] { packet = hub::read_packet(bytes); }) != ErrorCode::ok) return;
  const Bytes written = hub::write_packet(packet.head, packet.blobs);
  const hub::Packet again = hub::read_packet(written);
  require(again.head == packet.head && again.blobs.size() == packet.blobs.size(),
          "a packet is the same after it was written");
  hub::Terms terms;
  if (outcome([&] { terms = hub::terms_from(packet.head); }) == ErrorCode::ok) {
    require(nlohmann::json::parse(to_json(terms).dump()).size() <= packet.head.size(),
            "terms have their fields");
    terms.check();
  }
  if (packet.head.contains("model")) {
    std::vector<TensorSpec> model;
    if (outcome([&] { model = hub::model_from(packet.head["model"], 10'000); }) == ErrorCode::ok) {
      std::uint64_t elements = 0;
      for (const TensorSpec& spec : model) elements += spec.elements();
      require(elements <= 10'000, "a model is bounded");
      const auto text = nlohmann::json::parse(hub::to_json(model).dump());
      require(hub::model_from(text, 10'000) == model, "a model is the same after it was written");
    }
  }
  hub::Replica replica(kModel, kBuffers, {});
  outcome([&] { replica.load(bytes); });
  check_commit(bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto contents = std::as_bytes(std::span(data, size));
  check(contents);
  std::vector<std::byte> repaired(contents.begin(), contents.end());
  fuzz::fix_checksum(repaired);
  check(repaired);
  return 0;
}
