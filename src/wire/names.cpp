// Names of value types and index codings.
#include <fmt/format.h>

#include <array>
#include <string>

#include "dgc/error.h"
#include "dgc/wire.h"

namespace dgc {
namespace {

constexpr std::array kValueTypes = {ValueType::fp32, ValueType::fp16, ValueType::bf16,
                                    ValueType::int8, ValueType::sign};
constexpr std::array kCodings = {IndexCoding::runs, IndexCoding::rice, IndexCoding::bitmap,
                                 IndexCoding::dense, IndexCoding::automatic};

template <typename Choices>
auto parse(std::string_view what, std::string_view name, const Choices& choices) {
  std::string accepted;
  for (const auto choice : choices) {
    if (name == name_of(choice)) return choice;
    accepted += fmt::format("{}{}", accepted.empty() ? "" : ", ", name_of(choice));
  }
  throw Error(ErrorCode::invalid_argument, "parse", fmt::format("{} '{}'", what, name),
              "is unknown", fmt::format("use one of: {}", accepted));
}

}  // namespace

std::string_view name_of(ValueType type) noexcept {
  switch (type) {
    case ValueType::fp32:
      return "fp32";
    case ValueType::fp16:
      return "fp16";
    case ValueType::bf16:
      return "bf16";
    case ValueType::int8:
      return "int8";
    case ValueType::sign:
      return "sign";
  }
  return "unknown";
}

std::string_view name_of(IndexCoding coding) noexcept {
  switch (coding) {
    case IndexCoding::runs:
      return "runs";
    case IndexCoding::rice:
      return "rice";
    case IndexCoding::bitmap:
      return "bitmap";
    case IndexCoding::dense:
      return "dense";
    case IndexCoding::automatic:
      return "auto";
  }
  return "unknown";
}

ValueType parse_value_type(std::string_view name) { return parse("value type", name, kValueTypes); }

IndexCoding parse_index_coding(std::string_view name) {
  return parse("index coding", name, kCodings);
}

}  // namespace dgc
