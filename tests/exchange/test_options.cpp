// The lists of options: every member has a line, and its text says all of it.
#include "exchange/options.h"

#include <gtest/gtest.h>

#include "support/helpers.h"

namespace dgc {
namespace {

using test::code_of;

/// What is printed can be read, and gives the same again.
template <typename Options>
void expect_round_trip(std::span<const Option<Options>> list, const Options& options) {
  Options copy;
  for (const Option<Options>& option : list) {
    if (option.name == "schedule") continue;  // describes what it does, not how it was written
    option.parse(copy, option.print(options));
    EXPECT_EQ(option.print(copy), option.print(options)) << option.name;
  }
}

TEST(Options, AreReadAndWritten) {
  expect_round_trip(compress_options(), CompressOptions{});
  CompressOptions compress{.momentum = 0.95f,
                           .nesterov = true,
                           .momentum_correction = MomentumCorrection::global,
                           .masking = false,
                           .residual_decay = 0.95f,
                           .clip_norm = 0.25,
                           .selection = Selection::exact,
                           .values = ValueType::int8,
                           .dense_values = ValueType::bf16,
                           .indices = IndexCoding::rice,
                           .threads = 7};
  expect_round_trip(compress_options(), compress);
  // No member is left out: all of them differ from their defaults.
  for (const auto& option : compress_options()) {
    if (option.name == "schedule") continue;
    EXPECT_NE(option.print(compress), option.print({})) << option.name;
  }
  const ExchangeOptions exchange{.algorithm = Algorithm::owner,
                                 .check_parameters_every = 3,
                                 .mean = Mean::senders,
                                 .dense_transport = ValueType::fp16,
                                 .skip_nonfinite = true,
                                 .link = parse_link("link", "100Mbps,25ms"),
                                 .measure = true,
                                 .reselect = true,
                                 .host = "a"};
  expect_round_trip(exchange_options(), exchange);
  for (const auto& option : exchange_options()) {
    EXPECT_NE(option.print(exchange), option.print({})) << option.name;
  }
}

TEST(Options, TextsOfNumbersAreThoseOfAProgram) {
  CompressOptions options;
  ASSERT_TRUE(set_option(compress_options(), options, "momentum", "0.9"));
  EXPECT_EQ(options.momentum, 0.9f);
  ASSERT_TRUE(set_option(compress_options(), options, "schedule", "0.01"));
  EXPECT_EQ(options.schedule.ratio_at(0), 0.01);
  EXPECT_FALSE(set_option(compress_options(), options, "momentun", "0.9"));
}

TEST(Options, WrongTextsAreRefusedByName) {
  for (const auto& [name, text] : {std::pair{"momentum", "x"},
                                   {"momentum", ""},
                                   {"momentum", "0.9 "},
                                   {"masking", "1"},
                                   {"threads", "1.5"},
                                   {"values", "fp64"},
                                   {"selection", ""},
                                   {"indices", "zip"}}) {
    CompressOptions options;
    try {
      set_option(compress_options(), options, name, text);
      ADD_FAILURE() << name << " " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
}

// What ranks compare: everything that changes a result, and nothing that does not.
TEST(Options, ComparedAreThoseThatChangeTheResult) {
  EXPECT_EQ(compared_text(compress_options(), CompressOptions{}),
            "schedule steps 0 and on: ratio 0.001 (sparsity 99.9 %)\n"
            "momentum 0.9\nnesterov false\nmomentum_correction local\nmasking true\n"
            "residual_decay 1\nclip_norm 0\n"
            "values fp32\ndense_values fp32\nindices auto\n");
  EXPECT_EQ(compared_text(exchange_options(), ExchangeOptions{}),
            "algorithm auto\ncheck_parameters_every 100\nmean workers\ndense_transport fp32\n"
            "skip_nonfinite false\nlink \nmeasure false\nreselect false\n");
}

}  // namespace
}  // namespace dgc
