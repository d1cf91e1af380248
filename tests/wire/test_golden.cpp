// The files in tests/golden stay readable, are what the encoder still writes, and are rejected
// where they must be.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "support/document.h"
#include "support/helpers.h"
#include "support/samples.h"

namespace dgc {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> contents(const fs::path& path) {
  const MappedFile file(path);
  return {file.contents().begin(), file.contents().end()};
}

TEST(Golden, TheEncoderStillWritesTheSameBytes) {
  const fs::path directory = fs::path(DGC_GOLDEN_DIR) / "valid";
  std::size_t files = 0;
  for (const test::Sample& sample : test::valid_samples()) {
    EXPECT_EQ(contents(directory / (sample.name + ".dgc")), sample.bytes) << sample.name;
    ++files;
  }
  EXPECT_EQ(static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), {})),
            2 * files)
      << "a message and a listing for each sample, and nothing else";
}

TEST(Golden, ListingsAreWhatIsDecoded) {
  for (const auto& entry : fs::directory_iterator(fs::path(DGC_GOLDEN_DIR) / "valid")) {
    if (entry.path().extension() != ".dgc") continue;
    std::ifstream listing(fs::path(entry.path()).replace_extension(".txt"));
    std::uint64_t tensor = 0, elements = 0, index = 0;
    std::string bits;
    const std::vector<std::byte> bytes = contents(entry.path());
    const CheckedMessage message(bytes);
    if (const auto& notice = message.header().notice) {
      std::string line;
      std::getline(listing, line);
      EXPECT_EQ(line, test::listing_of(*notice)) << entry.path();
    }
    for (const Entries& frame : decode_entries(message, UINT64_MAX)) {
      for (std::size_t i = 0; i < frame.indices.size(); ++i) {
        ASSERT_TRUE(listing >> tensor >> elements >> index >> bits) << entry.path();
        EXPECT_EQ(tensor, frame.tensor);
        EXPECT_EQ(elements, frame.elements);
        EXPECT_EQ(index, frame.indices[i]);
        EXPECT_EQ(std::stoul(bits, nullptr, 16), std::bit_cast<std::uint32_t>(frame.values[i]));
      }
    }
    EXPECT_FALSE(listing >> tensor) << entry.path();
  }
}

TEST(Golden, MustRejectFilesAreRejectedWithTheErrorInTheirName) {
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(DGC_GOLDEN_DIR) / "reject")) {
    const std::string expected = entry.path().stem().extension().string().substr(1);
    const ErrorCode code = test::code_of([&] { (void)CheckedMessage(contents(entry.path())); });
    EXPECT_EQ(error_name(code), expected) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, test::damaged_samples().size());
}

TEST(Golden, StatesLoad) {
  for (const bool velocity : {true, false}) {
    State state({TensorSpec::of("conv.weight", {4, 3}), TensorSpec::of("bias", {4}),
                 TensorSpec::of("empty", {0, 2})},
                1, 2, velocity);
    state.load(fs::path(DGC_GOLDEN_DIR) / "state" / (velocity ? "momentum.dgc" : "plain.dgc"));
    EXPECT_EQ(state.step(), 99u);
    EXPECT_NE(state.residual(0)[11], 0.0f);
  }
}

TEST(Golden, TheWorkedExampleOfTheDocument) {
  const std::vector<std::byte> message = test::hex_in_document(DGC_FORMAT_DOC);
  const CheckedMessage info(message);
  EXPECT_EQ(info.header().step, 7u);
  EXPECT_EQ(info.header().sender, 1u);
  ASSERT_TRUE(info.header().notice);
  EXPECT_EQ(test::listing_of(*info.header().notice), "notice 0 10 0000000000000000 [1101]");
  const std::vector<Entries> frames = decode_entries(info, 100);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].indices, (std::vector<std::uint32_t>{2, 5, 300}));
  EXPECT_EQ(frames[0].values, (std::vector<float>{1.5f, -2.0f, 0.25f}));
  EXPECT_EQ(frames[1].tensor, 3u);
  EXPECT_EQ(frames[1].indices, (std::vector<std::uint32_t>{1, 70000}));
  EXPECT_EQ(frames[1].values, (std::vector<float>{1.0f, -3.0f}));
}

}  // namespace
}  // namespace dgc
