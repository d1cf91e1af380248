// Names of value types and index codings.
#include <array>

#include "base/choice.h"
#include "dgc/wire.h"

namespace dgc {
namespace {

constexpr std::array kValueTypes = {ValueType::fp32,  ValueType::fp16, ValueType::bf16,
                                    ValueType::int8,  ValueType::sign, ValueType::table2,
                                    ValueType::table4};
constexpr std::array kCodings = {IndexCoding::runs, IndexCoding::rice, IndexCoding::bitmap,
                                 IndexCoding::dense, IndexCoding::automatic};

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
    case ValueType::table2:
      return "table2";
    case ValueType::table4:
      return "table4";
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

std::span<const ValueType> value_types() noexcept { return kValueTypes; }
std::span<const IndexCoding> index_codings() noexcept { return kCodings; }

ValueType parse_value_type(std::string_view name) {
  return parse_choice("value type", name, value_types());
}

IndexCoding parse_index_coding(std::string_view name) {
  return parse_choice("index coding", name, index_codings());
}

}  // namespace dgc
