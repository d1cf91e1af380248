// The mean of an entry over those who sent it, against sums made entry by entry.
#include "exchange/senders.h"

#include <gtest/gtest.h>

#include "support/helpers.h"
#include "support/samples.h"

namespace dgc {
namespace {

using test::code_of;

constexpr std::size_t kElements = 40;

/// A message with tensor 1 whole and some entries of tensor 0: each element with probability 1/4,
/// or all, some of them zero, as a frame without positions has them.
std::vector<std::byte> message_of(test::Lcg& random, bool dense) {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  for (std::uint32_t i = 0; i < kElements; ++i) {
    const bool sent = random.next() % 4 == 0;
    if (!sent && !dense) continue;
    if (!dense) indices.push_back(i);
    values.push_back(sent ? random.value() : 0.0f);
  }
  std::vector<float> whole(3);
  for (float& x : whole) x = random.next() % 2 == 0 ? 0.0f : random.value();
  return test::message_of({{.tensor = 0,
                            .elements = kElements,
                            .indices = indices,
                            .values = values,
                            .coding = dense ? IndexCoding::dense : IndexCoding::rice},
                           {.tensor = 1, .elements = 3, .indices = {}, .values = whole}});
}

TEST(Senders, MeanIsOverThoseWhoSentIt) {
  test::Lcg random(3);
  std::vector<std::vector<std::byte>> bytes;
  for (int rank = 0; rank < 5; ++rank) bytes.push_back(message_of(random, rank == 2));
  std::vector<CheckedMessage> checked(bytes.begin(), bytes.end());
  std::vector<const CheckedMessage*> messages;
  std::vector<float> sums(kElements, 0.0f);
  std::vector<float> counts(kElements, 0.0f);
  std::vector<float> whole(3, 0.0f);
  for (const CheckedMessage& message : checked) {
    messages.push_back(&message);
    for (const Entries& frame : decode_entries(message, 1000)) {
      for (std::size_t i = 0; i < frame.indices.size(); ++i) {
        if (frame.tensor == 1) whole[frame.indices[i]] += frame.values[i];
        if (frame.tensor == 1 || frame.values[i] == 0.0f) continue;
        sums[frame.indices[i]] += frame.values[i];
        counts[frame.indices[i]] += 1.0f;
      }
    }
  }
  std::vector<float> first(kElements, 1.0f);
  std::vector<float> second(3, 1.0f);
  const std::vector<std::span<float>> targets = {first, second};
  const std::vector<float> alphas = {-0.5f, 2.0f};
  exchange::add_mean_of_senders(messages, targets, alphas, {false, true});
  for (std::size_t i = 0; i < kElements; ++i) {
    const float mean = counts[i] == 0.0f ? 0.0f : sums[i] * 5.0f / counts[i];
    EXPECT_NEAR(first[i], 1.0f - 0.5f * mean, 1e-5f) << i << ", sent by " << counts[i];
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(second[i], 1.0f + 2.0f * whole[i], 1e-5f);

  // Nothing is written where anything is wrong, and tensors without a target are left out.
  const std::vector<float> before = first;
  const std::span<float> half = std::span(first).first(20);
  EXPECT_EQ(code_of([&] {
              exchange::add_mean_of_senders(messages, std::vector<std::span<float>>{half, second},
                                            alphas, {false, true});
            }),
            ErrorCode::shape_mismatch);
  EXPECT_EQ(
      code_of([&] {
        exchange::add_mean_of_senders(messages, std::span(targets).first(1), alphas, {false, true});
      }),
      ErrorCode::unknown_tensor);
  EXPECT_EQ(first, before);
  const std::vector<float> whole_before = second;
  exchange::add_mean_of_senders(messages, std::vector<std::span<float>>{first, {}}, alphas,
                                {false, true});
  EXPECT_NE(first, before);
  EXPECT_EQ(second, whole_before);
}

}  // namespace
}  // namespace dgc
