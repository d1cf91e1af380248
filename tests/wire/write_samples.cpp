// write_samples DIR: the sample messages (valid/NAME.dgc, reject/NAME.ERROR.dgc), three states
// (state/), checkpoints of steps 10 and 20 (checkpoints/), and beside every valid message what the
// C++ decoder finds in it (NAME.txt: the notice; tensor, elements, index and bits of each value).
#include <fmt/format.h>

#include <bit>
#include <filesystem>
#include <fstream>

#include "checkpoint/save.h"
#include "support/samples.h"

namespace fs = std::filesystem;
using namespace dgc;

namespace {

void write(const fs::path& path, const std::vector<std::byte>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: write_samples DIR\n");
    return 2;
  }
  try {
    const fs::path root = argv[1];
    for (const char* part : {"valid", "reject", "state"}) fs::create_directories(root / part);
    for (const test::Sample& sample : test::valid_samples()) {
      write(root / "valid" / (sample.name + ".dgc"), sample.bytes);
      std::ofstream text(root / "valid" / (sample.name + ".txt"));
      const CheckedMessage message(sample.bytes);
      if (const auto& notice = message.header().notice) text << test::listing_of(*notice) << "\n";
      for (const Entries& frame : decode_entries(message, UINT64_MAX)) {
        for (std::size_t i = 0; i < frame.indices.size(); ++i) {
          text << fmt::format("{} {} {} {:08x}\n", frame.tensor, frame.elements, frame.indices[i],
                              std::bit_cast<std::uint32_t>(frame.values[i]));
        }
      }
    }
    for (const test::Sample& sample : test::damaged_samples()) {
      write(root / "reject" / fmt::format("{}.{}.dgc", sample.name, error_name(sample.error)),
            sample.bytes);
    }
    for (const bool velocity : {true, false}) {
      State state({TensorSpec::of("conv.weight", {4, 3}), TensorSpec::of("bias", {4}),
                   TensorSpec::of("empty", {0, 2})},
                  1, 2, velocity);
      test::Lcg random(5);
      for (std::size_t t = 0; t < 2; ++t) {
        for (float& x : state.velocity(t)) x = random.value();
        for (float& x : state.residual(t)) x = random.value();
      }
      state.set_step(99);
      state.save(root / "state" / (velocity ? "momentum.dgc" : "plain.dgc"));
    }
    const auto groups = make_local_groups(1);
    for (const std::uint64_t step : {10, 20}) {
      const State state({TensorSpec::of("w", {4, 3})});
      const std::string model = "parameters";
      checkpoint::save(*groups[0], root / "checkpoints",
                       {.step = step,
                        .user = fmt::format("epoch {}", step / 10),
                        .shared = {{"model.pt", std::as_bytes(std::span(model))}},
                        .state = &state},
                       2);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "write_samples: {}\n", error.what());
    return 1;
  }
  return 0;
}
