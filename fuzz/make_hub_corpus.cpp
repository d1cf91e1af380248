// Writes the seeds of the hub's fuzzers: make_hub_corpus fuzz/corpus. Deterministic, like
// make_corpus.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "dgc/version.h"
#include "hub/replica.h"

namespace {

using namespace dgc;
using hub::Bytes;
namespace fs = std::filesystem;

const std::vector<TensorSpec> kModel = {TensorSpec::of("w", {16, 4}), TensorSpec::of("b", {5})};
const std::vector<TensorSpec> kBuffers = {TensorSpec::of("mean", {3})};

void write(const fs::path& file, std::span<const std::byte> contents) {
  fs::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(contents.data()),
            static_cast<std::streamsize>(contents.size()));
}

Bytes message(const hub::Terms& terms) {
  State state(kModel, 0, 1, terms.member_options().needs_velocity());
  Compressor compressor(state, terms.member_options());
  compressor.change_schedule(Schedule(0.1));
  const std::vector<float> w(64, 0.5f), b(5, -1.0f);
  const Gradient gradients[] = {{0, w}, {1, b}};
  Bytes bytes(compressor.bound(gradients));
  bytes.resize(compressor.compress(gradients, bytes));
  compressor.commit();
  return bytes;
}

/// Steps as fuzz_hub reads them.
class Steps {
 public:
  explicit Steps(std::uint8_t select) { put(select); }
  Steps& add(std::uint8_t what, const nlohmann::json& head, std::span<const std::byte> blob = {}) {
    const std::string text = head.is_string() ? head.get<std::string>() : head.dump();
    put(what);
    put(static_cast<std::uint16_t>(text.size()));
    put(static_cast<std::uint16_t>(blob.size()));
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    bytes_.insert(bytes_.end(), blob.begin(), blob.end());
    return *this;
  }
  const Bytes& bytes() const { return bytes_; }

 private:
  template <typename T>
  void put(T value) {
    for (const std::byte byte : std::as_bytes(std::span(&value, 1))) bytes_.push_back(byte);
  }
  Bytes bytes_;
};

nlohmann::json join(std::uint64_t sequence, bool alive) {
  return {{"protocol", hub::kProtocol},
          {"version", DGC_VERSION},
          {"positions", 20},
          {"data", "d"},
          {"model", hub::to_json(kModel)},
          {"buffers", hub::to_json(kBuffers)},
          {"sequence", sequence},
          {"alive", alive},
          {"saved", nlohmann::json::array({0})}};
}

nlohmann::json about(std::uint64_t sequence, std::uint64_t have) {
  return {{"session", "S"}, {"sequence", sequence}, {"have", have},          {"saved", 0},
          {"rtt", 0.1},     {"base", have},         {"examples", 4},         {"loss", 1.5},
          {"seconds", 0.5}, {"residual", 2.0},      {"metrics", {{"x", 1}}}, {"round", have}};
}

void make_hub(const fs::path& folder) {
  for (const std::uint8_t select : {std::uint8_t{0}, std::uint8_t{1}}) {
    const hub::Terms terms{.down = select == 1 ? hub::Down::select : hub::Down::forward,
                           .momentum = 0.0f,
                           .check_every = 1};
    const Bytes first = hub::Replica(kModel, kBuffers, terms).snapshot();
    const Bytes sent = message(terms);
    const std::string name = select == 1 ? "select_" : "forward_";
    Steps begun(select);
    begun.add(0, join(0, false)).add(1, {{"session", "S"}}, first).add(3, about(0, 0));
    write(folder / (name + "begun"), begun.bytes());
    Steps steps = begun;
    for (std::uint64_t round = 0; round < 5; ++round) {
      steps.add(2, about(round + 1, round), sent).add(3, about(round + 1, round));
      if (round == 1) steps.add(201, "").add(0, join(2, true));
      if (round == 3) steps.add(202, "").add(0, join(4, false)).add(3, about(4, 4));
    }
    write(folder / (name + "rounds"), steps.bytes());
    steps.add(5, about(5, 5))
        .add(7, "after=2")
        .add(8, "")
        .add(9, "")
        .add(10, "")
        .add(4, about(5, 5));
    write(folder / (name + "ended"), steps.bytes());
    Steps two = begun;
    two.add(12, join(0, false)).add(200, std::string(6400, ' ')).add(0, join(0, false));
    two.add(2, about(1, 0), sent).add(30, {{"name", "new"}}).add(55, {{"name", "x"}});
    write(folder / (name + "two"), two.bytes());
  }
}

void make_packets(const fs::path& folder) {
  const hub::Terms terms;
  hub::Replica replica(kModel, kBuffers, terms);
  hub::Commit commit{.round = 1, .lr = 0.1f, .share = 0.25f, .ratio = 0.01};
  commit.parts.push_back({"a", 1, 0, 4, 1.0f});
  commit.messages.push_back(message(terms));
  write(folder / "commit", to_bytes(commit));
  commit.parameters = replica.hash();
  commit.buffers.assign(12, std::byte{0});
  write(folder / "commit_with_hash", to_bytes(commit));
  write(folder / "snapshot", replica.snapshot());
  write(folder / "terms", hub::write_packet(to_json(terms)));
  write(folder / "join", hub::write_packet(join(7, true)));
  write(folder / "empty", hub::write_packet(nlohmann::json::object()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_hub_corpus DIRECTORY\n");
    return 2;
  }
  try {
    make_hub(fs::path(argv[1]) / "hub");
    make_packets(fs::path(argv[1]) / "hub_packet");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_hub_corpus: %s\n", error.what());
    return 1;
  }
  return 0;
}
