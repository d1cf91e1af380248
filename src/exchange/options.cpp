#include "exchange/options.h"

#include <array>

namespace dgc {

std::string_view name_of(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::automatic:
      return "auto";
    case Algorithm::allgather:
      return "allgather";
    case Algorithm::owner:
      return "owner";
    case Algorithm::dense:
      return "dense";
    case Algorithm::hierarchical:
      return "hierarchical";
  }
  return "unknown";
}

std::span<const Algorithm> algorithms() noexcept {
  static constexpr std::array kAll = {Algorithm::automatic, Algorithm::allgather, Algorithm::owner,
                                      Algorithm::dense, Algorithm::hierarchical};
  return kAll;
}

Algorithm parse_algorithm(std::string_view name) {
  return parse_choice("algorithm", name, algorithms());
}

std::string_view name_of(Mean mean) noexcept {
  switch (mean) {
    case Mean::workers:
      return "workers";
    case Mean::senders:
      return "senders";
  }
  return "unknown";
}

std::span<const Mean> means() noexcept {
  static constexpr std::array kAll = {Mean::workers, Mean::senders};
  return kAll;
}

Mean parse_mean(std::string_view name) { return parse_choice("mean", name, means()); }

namespace {

/// Texts that parse_link reads back without losing a bit; empty: it is measured.
Option<ExchangeOptions> link_option() {
  using O = ExchangeOptions;
  return {.name = "link",
          .parse =
              [](O& o, std::string_view text) {
                o.link = text.empty() ? std::nullopt : std::optional(parse_link("link", text));
              },
          .print =
              [](const O& o) {
                return o.link ? fmt::format("{}B/s,{}s", o.link->bytes_per_second,
                                            o.link->delay.count())
                              : std::string();
              }};
}

}  // namespace

std::span<const Option<ExchangeOptions>> exchange_options() {
  using O = ExchangeOptions;
  static const std::vector<Option<O>> all = {
      choice_option("algorithm", &O::algorithm, algorithms()),
      plain_option("check_parameters_every", &O::check_parameters_every),
      choice_option("mean", &O::mean, means()),
      choice_option("dense_transport", &O::dense_transport, value_types()),
      plain_option("skip_nonfinite", &O::skip_nonfinite),
      link_option(),
      plain_option("measure", &O::measure),
      plain_option("reselect", &O::reselect),
      plain_option("host", &O::host, false),
  };
  return all;
}

void exchange::check_options(const ExchangeOptions& options) {
  if (options.mean == Mean::senders && options.algorithm != Algorithm::allgather &&
      options.algorithm != Algorithm::automatic) {
    throw Error(ErrorCode::invalid_argument, "exchange", "mean",
                fmt::format("senders cannot be counted with {}", name_of(options.algorithm)),
                "use allgather, or the mean over all workers");
  }
  const ValueType transport = options.dense_transport;
  if (transport != ValueType::fp32 && transport != ValueType::fp16 &&
      transport != ValueType::bf16) {
    throw Error(ErrorCode::invalid_argument, "exchange", "dense_transport",
                fmt::format("{} is too coarse for sums", name_of(transport)),
                "use fp32, fp16 or bf16");
  }
  const std::optional<Link> link = options.costs ? options.costs->link : options.link;
  if (link && (!(link->bytes_per_second > 0.0) || !(link->delay.count() >= 0.0))) {
    throw Error(ErrorCode::invalid_argument, "exchange", "link",
                fmt::format("{} bytes a second, {} s", link->bytes_per_second, link->delay.count()),
                "give what parse_link(\"100Mbps,25ms\") gives");
  }
  if (options.check_parameters_every < 0) {
    throw Error(ErrorCode::invalid_argument, "exchange", "check_parameters_every",
                fmt::format("{} is negative", options.check_parameters_every), "0 turns it off");
  }
}

}  // namespace dgc
