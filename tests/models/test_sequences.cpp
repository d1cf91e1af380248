// The models for text and speech: sizes, states, and that padding changes nothing.
#include <gtest/gtest.h>

#include "dgc/error.h"
#include "models/deepspeech.h"
#include "models/lstm.h"
#include "support/model_checks.h"

namespace dgc::models {
namespace {

using Sizes = std::vector<std::int64_t>;

TEST(LanguageModels, HaveThePapersSize) {
  torch::manual_seed(1);
  // 194.68 MiB of gradients.
  LanguageModel model = make_language_model(ptb_options());
  EXPECT_EQ(count(*model), 51'034'000);
  EXPECT_NEAR(model->named_parameters()["encoder.weight"].max().item<double>(), 0.1, 1e-6);
  EXPECT_NEAR(model->named_parameters()["encoder.weight"].std().item<double>(), 0.2 / std::sqrt(12),
              1e-4);
  EXPECT_NEAR(model->named_parameters()["lstm.weight_hh_l1"].max().item<double>(),
              1.0 / std::sqrt(1500), 1e-6);
  EXPECT_EQ(model->named_parameters()["decoder.bias"].abs().max().item<double>(), 0.0);

  // Zaremba et al.'s large network.
  LanguageModelOptions untied = ptb_options();
  untied.tied = false;
  EXPECT_EQ(count(*make_language_model(untied)), 66'034'000);
}

TEST(LanguageModels, TieEncoderAndDecoder) {
  LanguageModelOptions small{.vocabulary = 50, .embedding = 8, .hidden = 8, .layers = 2};
  const std::int64_t recurrent = 2 * 4 * (8 * 8 + 8 * 8 + 8 + 8);
  EXPECT_EQ(count(*make_language_model(small)), 2 * 50 * 8 + 50 + recurrent);
  small.tied = true;
  small.dropout = 0.5;
  LanguageModel model = make_language_model(small);
  EXPECT_EQ(count(*model), 50 * 8 + 50 + recurrent);
  EXPECT_TRUE(model->named_parameters()["encoder.weight"].is_same(
      model->named_parameters()["decoder.weight"]));

  const torch::Tensor words = torch::randint(50, {5, 3}, torch::kLong);
  auto [logits, state] = model->forward(words);
  EXPECT_EQ(logits.sizes(), (Sizes{5, 3, 50}));
  logits.sum().backward();
  EXPECT_TRUE(all_have_gradients(*model));
}

TEST(LanguageModels, GoOnFromTheirState) {
  LanguageModel model = make_language_model({.vocabulary = 50, .embedding = 8, .hidden = 16});
  model->eval();
  const torch::Tensor words = torch::randint(50, {6, 3}, torch::kLong);
  const auto whole = std::get<0>(model->forward(words));
  const auto [first, state] = model->forward(words.slice(0, 0, 4));
  const auto next = detached(state);
  EXPECT_FALSE(std::get<0>(next).requires_grad());
  EXPECT_FALSE(std::get<1>(next).requires_grad());
  const auto rest = std::get<0>(model->forward(words.slice(0, 4, 6), next));
  EXPECT_TRUE(torch::allclose(whole, torch::cat({first, rest}), 1e-5, 1e-6));
}

TEST(LanguageModels, DropBeforeBetweenAndAfterTheLayers) {
  torch::manual_seed(1);
  LanguageModel model =
      make_language_model({.vocabulary = 50, .embedding = 16, .hidden = 16, .dropout = 0.5});
  const torch::NoGradGuard guard;
  const torch::Tensor words = torch::zeros({1, 20}, torch::kLong);  // one word, in every column
  // By more than rounding: some kernels of a BLAS round the last columns of a matrix otherwise.
  const auto differ = [](const torch::Tensor& columns) {
    return !torch::allclose(columns, columns.slice(0, 0, 1).expand_as(columns), 1e-5, 1e-6);
  };
  struct Seen {
    bool first, second, logits;
    bool operator==(const Seen&) const = default;
  };
  const auto look = [&] {
    const auto [logits, state] = model->forward(words);
    const torch::Tensor& h = std::get<0>(state);
    return Seen{differ(h[0]), differ(h[1]), differ(logits[0])};
  };
  EXPECT_EQ(look(), (Seen{true, true, true}));
  // A layer that ignores its input shows the dropouts after it alone.
  model->named_parameters()["lstm.weight_ih_l0"].zero_();
  EXPECT_EQ(look(), (Seen{false, true, true}));
  model->named_parameters()["lstm.weight_ih_l1"].zero_();
  EXPECT_EQ(look(), (Seen{false, false, true}));
  model->eval();
  EXPECT_EQ(look(), (Seen{false, false, false}));
}

TEST(LanguageModels, Learn) {
  torch::manual_seed(1);
  LanguageModel model =
      make_language_model({.vocabulary = 30, .embedding = 24, .hidden = 24, .layers = 2});
  const torch::Tensor words = torch::randint(30, {9, 4}, torch::kLong);
  const auto loss = [&] {
    const auto logits = std::get<0>(model->forward(words.slice(0, 0, 8)));
    return torch::cross_entropy_loss(logits.flatten(0, 1), words.slice(0, 1, 9).flatten());
  };
  const Losses losses = train_on_one_batch(*model, loss, 150, 1.0);
  EXPECT_NEAR(losses.first, std::log(30.0), 0.2);
  EXPECT_LT(losses.last, 0.5 * losses.first);
}

TEST(LanguageModels, Refuse) {
  EXPECT_THROW(make_language_model({.embedding = 8, .hidden = 9, .tied = true}), Error);
  EXPECT_THROW(make_language_model({.layers = 0}), Error);
  EXPECT_THROW(make_language_model({.dropout = 1.0}), Error);
}

DeepSpeechOptions tiny(bool gru) {
  return {.bins = 41, .hidden = 24, .layers = 2, .labels = 6, .gru = gru, .channels = 4};
}

TEST(Speech, HasThePapersSize) {
  EXPECT_EQ(count(*make_deepspeech()), 54'823'168);
  DeepSpeechOptions options = librispeech_options();
  EXPECT_EQ(count(*make_deepspeech(options)), 122'169'968);
  options.convolutions = 3;
  EXPECT_EQ(count(*make_deepspeech(options)), 127'948'688);
  options.labels = 28;
  EXPECT_NEAR(static_cast<double>(count(*make_deepspeech(options))) * 4.0 / (1 << 20), 488.08,
              0.005);
}

TEST(Speech, HalvesFrames) {
  DeepSpeech model = make_deepspeech(tiny(true));
  model->eval();
  for (const std::int64_t frames : {1, 2, 3, 10, 31}) {
    const auto [logs, lengths] =
        model->forward(torch::randn({1, 1, 41, frames}), torch::tensor({frames}));
    EXPECT_EQ(lengths.item<std::int64_t>(), output_frames(frames));
    EXPECT_EQ(logs.sizes(), (Sizes{output_frames(frames), 1, 6}));
  }
  EXPECT_EQ(output_frames(1), 1);
  EXPECT_EQ(output_frames(300), 150);
  EXPECT_EQ(output_frames(301), 151);
}

/// With LSTM (false) and GRU (true).
class SpeechCells : public testing::TestWithParam<bool> {};

TEST_P(SpeechCells, PaddingChangesNoResult) {
  torch::manual_seed(3);
  DeepSpeech model = make_deepspeech(tiny(GetParam()));
  const torch::Tensor lengths = torch::tensor({20, 57, 33}, torch::kLong);
  torch::Tensor batch = torch::randn({3, 1, 41, 60});          // not zero beyond the ends either
  for (int i = 0; i < 3; ++i) model->forward(batch, lengths);  // statistics that are not 0 and 1
  model->eval();
  const auto [together, output] = model->forward(batch, lengths);
  ASSERT_EQ(together.sizes(), (Sizes{29, 3, 6}));
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto length = lengths[i].item<std::int64_t>();
    const auto [alone, frames] =
        model->forward(batch[i].unsqueeze(0).slice(3, 0, length), lengths.slice(0, i, i + 1));
    ASSERT_EQ(output[i].item<std::int64_t>(), output_frames(length));
    ASSERT_EQ(frames.item<std::int64_t>(), output_frames(length));
    const torch::Tensor mine = together.slice(0, 0, output_frames(length)).select(1, i);
    EXPECT_TRUE(torch::allclose(mine, alone.squeeze(1), 0.0, 1e-4));
    EXPECT_TRUE(torch::allclose(mine.exp().sum(1), torch::ones(output_frames(length))));
    const torch::Tensor beyond = together.slice(0, output_frames(length)).select(1, i);
    EXPECT_TRUE(beyond.equal(torch::zeros_like(beyond)));
  }
}

TEST_P(SpeechCells, PaddingChangesNoStatistics) {
  torch::manual_seed(3);
  DeepSpeech model = make_deepspeech(tiny(GetParam()));
  torch::manual_seed(3);
  DeepSpeech other = make_deepspeech(tiny(GetParam()));
  const torch::Tensor lengths = torch::tensor({20, 57, 33}, torch::kLong);
  const torch::Tensor batch = torch::randn({3, 1, 41, 57});
  const torch::Tensor padded = torch::constant_pad_nd(batch, {0, 40}, 7.0);
  const auto a = std::get<0>(model->forward(batch, lengths));
  const auto b = std::get<0>(other->forward(padded, lengths));
  EXPECT_TRUE(torch::allclose(a, b, 0.0, 1e-5));
  // The mean of the first convolution over the frames that exist, by hand.
  const auto parameters = model->named_parameters();
  torch::Tensor sum = torch::zeros({tiny(GetParam()).channels});
  std::int64_t frames = 0;
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto length = lengths[i].item<std::int64_t>();
    const torch::Tensor y =
        torch::conv2d(batch[i].unsqueeze(0).slice(3, 0, length), parameters["conv1.weight"],
                      parameters["conv1.bias"], {2, 2}, {20, 5});
    sum += y.sum({0, 2, 3});
    frames += y.size(2) * y.size(3);
  }
  const torch::Tensor mean = sum / static_cast<double>(frames);
  EXPECT_TRUE(torch::allclose(model->named_buffers()["bn1.running_mean"], 0.1 * mean, 1e-4, 1e-6));
}

TEST_P(SpeechCells, SeesTheWholeUtteranceFromEveryFrame) {
  torch::manual_seed(3);
  DeepSpeech model = make_deepspeech(tiny(GetParam()));
  model->eval();
  const torch::Tensor length = torch::tensor({60}, torch::kLong);
  const torch::Tensor a = torch::randn({1, 1, 41, 60});
  for (const std::int64_t frame : {0, 59}) {
    torch::Tensor b = a.clone();
    b.select(3, frame) += 5.0;
    const torch::Tensor change =
        (std::get<0>(model->forward(a, length)) - std::get<0>(model->forward(b, length)))
            .abs()
            .amax({1, 2});
    EXPECT_GT(change.min().item<double>(), 0.0);
  }
}

TEST_P(SpeechCells, LearnsWithCtc) {
  torch::manual_seed(3);
  DeepSpeech model = make_deepspeech(tiny(GetParam()));
  const torch::Tensor lengths = torch::tensor({40, 64, 50, 61}, torch::kLong);
  const torch::Tensor batch = torch::randn({4, 1, 41, 64});
  const torch::Tensor texts = torch::tensor(
      {{1, 2, 3, 0, 0}, {5, 5, 1, 2, 4}, {3, 4, 3, 4, 0}, {2, 1, 0, 0, 0}}, torch::kLong);
  const torch::Tensor text_lengths = torch::tensor({3, 5, 4, 2}, torch::kLong);
  const auto loss = [&] {
    const auto [logs, frames] = model->forward(batch, lengths);
    return torch::ctc_loss(logs, texts, frames, text_lengths);
  };
  const Losses losses = train_on_one_batch(*model, loss, 60, 0.05);
  EXPECT_TRUE(all_have_gradients(*model));
  EXPECT_LT(losses.last, 0.3 * losses.first) << losses.first << " to " << losses.last;
}

INSTANTIATE_TEST_SUITE_P(Both, SpeechCells, testing::Bool(),
                         [](const auto& gru) { return gru.param ? "Gru" : "Lstm"; });

TEST(Speech, Refuses) {
  const auto code_of = [](const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::ok;
  };
  EXPECT_EQ(code_of([] { make_deepspeech({.layers = 0}); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { make_deepspeech({.labels = 1}); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { make_deepspeech({.convolutions = 1}); }), ErrorCode::invalid_argument);

  DeepSpeech model = make_deepspeech(tiny(true));
  const torch::Tensor batch = torch::randn({2, 1, 41, 20});
  const auto code = [&](const torch::Tensor& spectrograms, const torch::Tensor& lengths) {
    return code_of([&] { model->forward(spectrograms, lengths); });
  };
  const auto lengths = [](std::vector<std::int64_t> values) { return torch::tensor(values); };
  EXPECT_EQ(code(batch, lengths({20, 1})), ErrorCode::ok);
  EXPECT_EQ(code(batch, lengths({20})), ErrorCode::shape_mismatch);
  EXPECT_EQ(code(batch, lengths({20, 20}).to(torch::kInt)), ErrorCode::shape_mismatch);
  EXPECT_EQ(code(batch.slice(2, 0, 40), lengths({20, 20})), ErrorCode::shape_mismatch);
  EXPECT_EQ(code(batch.squeeze(1), lengths({20, 20})), ErrorCode::shape_mismatch);
  EXPECT_EQ(code(batch, lengths({20, 0})), ErrorCode::invalid_argument);
  EXPECT_EQ(code(batch, lengths({21, 20})), ErrorCode::invalid_argument);
  EXPECT_EQ(code(batch.slice(0, 0, 1), lengths({2})), ErrorCode::invalid_argument);
  model->eval();
  EXPECT_EQ(code(batch.slice(0, 0, 1), lengths({2})), ErrorCode::ok);
}

}  // namespace
}  // namespace dgc::models
