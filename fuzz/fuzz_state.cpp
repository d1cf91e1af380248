// State files: anything may be read, and what is saved is loaded bit for bit.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/temporary_folder.h"
#include "dgc/state.h"
#include "support.h"

namespace {

using namespace dgc;
using fuzz::outcome;
using fuzz::require;

/// First byte of inputs that describe a state to save, instead of being a file. Saving waits for
/// the disk: one value in 256 keeps most runs fast.
constexpr std::uint8_t kSave = 'S';

void check_contents(std::span<const std::byte> contents) {
  StateInfo info;
  if (outcome([&] { info = inspect_state(contents); }) != ErrorCode::ok) return;
  require(info.rank < info.workers, "the rank is one of the workers");
  std::uint64_t bytes = 4 + 1 + 1 + 2 + 4 + 4 + 8 + 4 + 8;
  for (const StateInfo::Tensor& tensor : info.tensors) {
    const std::uint64_t elements = tensor.spec.elements();
    bytes += 2 + tensor.spec.name.size() + 1 + 1 + 8 * tensor.spec.shape.size();
    bytes += elements * sizeof(float) * (info.has_velocity ? 2 : 1);
    require(tensor.residual_nonzero <= elements, "no more non-zeros than elements");
    require(std::isfinite(tensor.velocity_norm) && std::isfinite(tensor.residual_norm),
            "norms are finite");
    require((tensor.residual_norm > 0.0) == (tensor.residual_nonzero > 0),
            "the norm of non-zeros is not zero");
  }
  require(bytes == info.bytes && bytes == contents.size(), "the tensors fill the file");
}

class TemporaryFile {
 public:
  std::vector<char> read() const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(std::span<const char> contents) const {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  }

  const TemporaryFolder folder{"dgc-fuzz-"};
  const std::filesystem::path path = folder / "state";
};

bool same(const State& a, const State& b) {
  bool equal = a.step() == b.step() && a.has_velocity() == b.has_velocity();
  for (std::size_t i = 0; i < a.tensors().size(); ++i) {
    equal = equal && fuzz::same_bits(a.velocity(i), b.velocity(i)) &&
            fuzz::same_bits(a.residual(i), b.residual(i));
  }
  return equal;
}

/// Layout of an input: velocity or not, rank, workers beyond it, step, where to damage the file,
/// number of tensors; for each its flag, name and dimensions; the rest are values.
void check_save(fuzz::Input in) {
  const bool with_velocity = in.take<std::uint8_t>() % 2 != 0;
  const std::uint32_t rank = in.take<std::uint16_t>();
  const std::uint32_t workers = rank + 1 + in.take<std::uint16_t>();
  const auto step = in.take<std::uint64_t>();
  const auto damage = in.take<std::uint16_t>();
  std::vector<TensorSpec> specs(in.take<std::uint8_t>() % 4);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].dense = in.take<std::uint8_t>() % 2 != 0;
    specs[i].name.resize(in.take<std::uint8_t>() % 8);
    for (char& c : specs[i].name) c = in.take<char>();
    specs[i].name += static_cast<char>('0' + i);  // names differ
    specs[i].shape.resize(in.take<std::uint8_t>() % 4);
    for (std::int64_t& size : specs[i].shape) size = in.take<std::uint8_t>() % 8;
  }
  std::vector<std::uint32_t> words;
  while (!in.empty()) words.push_back(in.take<std::uint32_t>());
  const fuzz::Pattern pattern(0, std::move(words));

  State saved(specs, rank, workers, with_velocity);
  saved.set_step(step);
  std::size_t next = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    for (float& u : saved.velocity(i)) u = pattern.finite(next++);
    for (float& v : saved.residual(i)) v = pattern.finite(next++);
  }
  const TemporaryFile file;
  saved.save(file.path);
  std::vector<char> contents = file.read();
  const StateInfo info = inspect_state(std::as_bytes(std::span(contents)));
  require(info.rank == rank && info.workers == workers && info.step == step &&
              info.has_velocity == with_velocity && info.tensors.size() == specs.size(),
          "the header arrives");
  for (std::size_t i = 0; i < specs.size(); ++i) {
    require(info.tensors[i].spec == specs[i], "specs arrive");
  }
  check_contents(std::as_bytes(std::span(contents)));

  State loaded(specs, rank, workers, with_velocity);
  loaded.load(file.path);
  require(same(saved, loaded), "what was saved is loaded");

  // A damaged file changes nothing.
  State untouched(specs, rank, workers, with_velocity);
  const State zeros(specs, rank, workers, with_velocity);
  contents[damage % contents.size()] ^= 0x20;
  file.write(contents);
  require(outcome([&] { untouched.load(file.path); }) != ErrorCode::ok, "damage is found");
  require(same(untouched, zeros), "nothing of a damaged file is loaded");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0 && data[0] == kSave) {
    check_save(fuzz::Input({data + 1, size - 1}));
    return 0;
  }
  const auto contents = std::as_bytes(std::span(data, size));
  check_contents(contents);
  std::vector<std::byte> repaired(contents.begin(), contents.end());
  fuzz::fix_checksum(repaired);
  check_contents(repaired);
  return 0;
}
