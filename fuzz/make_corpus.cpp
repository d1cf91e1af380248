// Writes the seed corpus: make_corpus fuzz/corpus. To be run again when the format or the layout of
// an input changes; seeds are deterministic.
#include <bit>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dgc/dgc.h"

namespace {

using namespace dgc;

constexpr ValueType kTypes[] = {ValueType::fp32,  ValueType::fp16, ValueType::bf16,
                                ValueType::int8,  ValueType::sign, ValueType::table2,
                                ValueType::table4};
/// In the order of fuzz_roundtrip.
constexpr IndexCoding kCodings[] = {IndexCoding::runs, IndexCoding::rice, IndexCoding::bitmap,
                                    IndexCoding::dense, IndexCoding::automatic};

using Bytes = std::vector<std::byte>;

/// The fields of an input, one after the other.
class Fields {
 public:
  template <typename... T>
  explicit Fields(T... values) {
    (put(values), ...);
  }
  template <typename T>
  Fields& put(T value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

class Directory {
 public:
  Directory(const std::filesystem::path& parent, const char* name) : path_(parent / name) {
    std::filesystem::create_directories(path_);
  }
  std::filesystem::path file(const std::string& name) const { return path_ / name; }
  void write(const std::string& name, std::span<const std::byte> contents) const {
    std::ofstream out(file(name), std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(contents.data()),
              static_cast<std::streamsize>(contents.size()));
    if (!out.flush()) throw Error(ErrorCode::io, "write", file(name).string(), "cannot write");
  }

 private:
  std::filesystem::path path_;
};

/// `entries` values every `step` elements; no indices for a whole tensor.
struct Tensor {
  Tensor(std::uint32_t id, std::uint64_t elements, std::size_t entries, std::uint32_t step,
         ValueType type, IndexCoding coding) {
    for (std::size_t i = 0; i < entries; ++i) {
      if (entries < elements) indices.push_back(static_cast<std::uint32_t>(i) * step);
      values.push_back((i % 2 == 0 ? 1.0f : -0.625f) * static_cast<float>(i % 7 + 1));
    }
    input = {id, elements, indices, values, type, coding};
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  FrameInput input;
};

Bytes message_of(std::initializer_list<const Tensor*> tensors,
                 std::optional<Notice> notice = std::nullopt) {
  Bytes message(1 << 16);
  MessageWriter writer(message,
                       {.step = 12, .schema = 0xC0FFEE, .sender = 2, .notice = std::move(notice)});
  for (const Tensor* tensor : tensors) {
    std::vector<float> decoded(tensor->values.size());
    writer.add(tensor->input, decoded);
  }
  message.resize(writer.finish());
  return message;
}

/// Tensors 0 to 4 have the sizes that fuzz_decode decodes into.
void make_decode(const Directory& out) {
  for (const ValueType type : kTypes) {
    for (const IndexCoding coding : std::span(kCodings).first(4)) {
      const std::size_t entries = coding == IndexCoding::dense ? 64 : 9;
      const Tensor tensor(2, 64, entries, 7, type, coding);
      out.write(std::string(name_of(type)) + "_" + std::string(name_of(coding)),
                message_of({&tensor}));
    }
  }
  out.write("no_frames", message_of({}));
  const Tensor one(0, 1, 1, 1, ValueType::fp32, IndexCoding::dense);
  const Tensor few(1, 5, 2, 3, ValueType::int8, IndexCoding::runs);
  const Tensor blocks(4, 1000, 600, 1, ValueType::sign, IndexCoding::rice);
  const Tensor far(9, 60'000, 2, 59'999, ValueType::bf16, IndexCoding::rice);
  const Tensor farther(11, 200'000, 2, 199'999, ValueType::fp16, IndexCoding::runs);
  const Tensor sparse(1000, 0xFFFFFFFFu, 3, 0x7FFFFFFFu, ValueType::fp32, IndexCoding::rice);
  out.write("three_frames", message_of({&one, &few, &blocks}));
  out.write("long_gaps", message_of({&far, &farther}));
  out.write("notice", message_of({&one, &few}, Notice{.bucket = 3,
                                                      .present = {true, false, true},
                                                      .stop = true,
                                                      .parameters = 0x1234567890ABCDEFu}));
  Notice failed{.bucket = 1, .present = std::vector<bool>(9, true), .nonfinite = true};
  failed.failure = {.code = ErrorCode::nonfinite_gradient, .text = "nan at index 3"};
  out.write("notice_failed", message_of({}, failed));
  out.write("largest_tensor", message_of({&sparse}));
  Bytes damaged = message_of({&one, &few});
  damaged[40] ^= std::byte{1};
  out.write("damaged", damaged);
  damaged.resize(damaged.size() - 3);
  out.write("truncated", damaged);
}

void make_roundtrip(const Directory& out) {
  struct Seed {
    std::string name;
    std::uint8_t type;
    std::uint8_t coding;  // a place in kCodings
    bool whole;
    std::uint32_t elements;
    std::uint32_t entries;
    std::uint32_t mask;
    std::vector<std::uint32_t> gaps;
    std::vector<float> values;
  };
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float huge = std::numeric_limits<float>::max();
  std::vector<Seed> seeds;
  for (std::uint8_t type = 0; type < std::size(kTypes); ++type) {
    const std::string name(name_of(kTypes[type]));
    const auto sparse = static_cast<std::uint8_t>(type % 3);
    seeds.push_back({name + "_whole",
                     type,
                     4,
                     true,
                     700,
                     0,
                     0x80000000u,
                     {0},
                     {1.0f, 0.0f, tiny, huge, -3e-20f}});
    seeds.push_back({name + "_sparse",
                     type,
                     sparse,
                     false,
                     60'000,
                     600,
                     0x807FFFFFu,
                     {3, 0, 200},
                     {1.0f, 1e-3f, 256.0f}});
    seeds.push_back({name + "_dense", type, 3, false, 125, 50, 0, {1}, {-0.0f, 0.5f, 0.5f}});
  }
  seeds.push_back({"run_escapes", 0, 0, false, 200'000, 9, 0, {131'070, 65'535}, {1.0f, 2.0f}});
  seeds.push_back({"rice_escapes", 4, 1, false, 150'000, 300, 0, {0, 0, 0, 1'999}, {tiny, -tiny}});
  for (const Seed& seed : seeds) {
    Fields fields(seed.type, seed.coding, static_cast<std::uint8_t>(seed.whole),
                  static_cast<std::uint8_t>(std::bit_width(seed.elements)), seed.elements,
                  seed.entries, 1u, seed.mask, static_cast<std::uint8_t>(seed.gaps.size() - 1));
    for (const std::uint32_t gap : seed.gaps) fields.put(gap);
    for (const float value : seed.values) fields.put(value);
    out.write(seed.name, fields.bytes());
  }
}

void make_state(const Directory& out) {
  const auto filled = [](State state) {
    for (std::size_t i = 0; i < state.tensors().size(); ++i) {
      float value = 0.125f;
      for (float& u : state.velocity(i)) u = value += 1.0f;
      for (float& v : state.residual(i)) v = value = -value * 0.5f;
    }
    state.set_step(1234);
    return state;
  };
  const TensorSpec weight = TensorSpec::of("fc.weight", {3, 4});
  const TensorSpec bias = TensorSpec::of("fc.bias", {3});
  const TensorSpec scalar = TensorSpec::of("s", {});
  const TensorSpec nothing = TensorSpec::of("empty", {7, 0, 2});
  filled(State({})).save(out.file("no_tensors"));
  filled(State({scalar})).save(out.file("scalar"));
  filled(State({nothing})).save(out.file("empty_tensor"));
  filled(State({weight, bias}, 1, 4)).save(out.file("with_velocity"));
  filled(State({weight, bias}, 0, 1, false)).save(out.file("without_velocity"));
  filled(State({bias, nothing, scalar}, 65535, 65536)).save(out.file("last_rank"));
  State({weight}).save(out.file("zeros"));

  const auto descriptor = [](std::uint8_t velocity, std::uint16_t rank, std::uint8_t tensors) {
    return Fields('S', velocity, rank, std::uint16_t{1}, std::uint64_t{77}, std::uint16_t{30},
                  tensors);
  };
  out.write("save_nothing", descriptor(1, 0, 0).bytes());
  out.write("save_scalar", descriptor(0, 3, 1)
                               .put(std::uint8_t{1})  // dense
                               .put(std::uint8_t{0})  // no name but its number
                               .put(std::uint8_t{0})  // no dimensions
                               .put(-0.0f)
                               .bytes());
  out.write("save_two", descriptor(1, 1, 2)
                            .put(std::uint8_t{0})
                            .put(std::uint8_t{2})
                            .put('a')
                            .put('\xFF')
                            .put(std::uint8_t{2})
                            .put(std::uint8_t{3})
                            .put(std::uint8_t{5})
                            .put(std::uint8_t{1})
                            .put(std::uint8_t{0})
                            .put(std::uint8_t{1})
                            .put(std::uint8_t{0})
                            .put(1.5f)
                            .put(1e-42f)
                            .put(-3e38f)
                            .bytes());
}

void make_kernels(const Directory& out) {
  struct Seed {
    const char* name;
    std::uint16_t count;
    float scale;
    float momentum;
    std::uint32_t threshold;
    std::uint32_t mask;
    std::vector<float> values;  // gradient, u, v in turns
  };
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float huge = std::numeric_limits<float>::max();
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::uint32_t one = std::bit_cast<std::uint32_t>(1.0f);
  const Seed seeds[] = {
      {"nothing", 0, 1.0f, 0.9f, one, 0, {}},
      {"one", 1, 0.5f, 0.9f, 1, 0, {1.0f, 2.0f, 3.0f}},
      {"tail_only", 15, 0.25f, 0.9f, one, 0x80000000u, {1.0f, 0.5f, 0.75f}},
      {"all_candidates", 200, 0.125f, 0.9f, 1, 0x807FFFFFu, {1.0f, 2.0f, 3.0f}},
      {"few_candidates", 1000, 0.125f, 0.9f, one + 0x700000u, 0x807FFFFFu, {1.0f, 0.5f, 1.0f}},
      {"no_candidates", 333, 1.0f, 0.9f, 0xFFFFFFFFu, 0xFFFFFFFFu, {1.0f, 1.0f, 1.0f}},
      {"largest_block", 4096, 1.0f, 0.9f, one, 0xFFFFFFFFu, {1.0f, 1.0f, 1.0f}},
      {"nonfinite", 150, 1.0f, 0.9f, one, 0, {1, 2, 3, inf, 4, 5, 6, 7, 8, nan, 9, 1, -inf}},
      {"denormal", 130, 1.0f, 0.5f, 1, 0x80000003u, {tiny, 2e-38f, tiny, 1e-40f, 1e-38f, 0.0f}},
      {"overflow", 129, 1.0f, 0.9f, 0x7F800000u, 0x80000000u, {huge, huge, huge}},
      {"infinite_scale", 70, inf, 0.9f, one, 0x80000000u, {0.0f, 1.0f, 2.0f, 1.0f}},
      {"nan_momentum", 70, 1.0f, nan, 0x7FFFFFFFu, 0x80000000u, {1.0f, 0.0f, 1.0f}},
      {"no_momentum", 257, 1.0f, 0.0f, one, 0x8000FFFFu, {1.0f, -1.0f, 0.5f}},
  };
  std::uint8_t offset = 0;
  for (const Seed& seed : seeds) {
    Fields fields(offset, static_cast<std::uint8_t>(offset + 3),
                  static_cast<std::uint8_t>(offset * 5), seed.count, std::uint8_t{0}, seed.scale,
                  seed.momentum, seed.threshold, 0xFFFFFF00u, seed.mask);
    for (const float value : seed.values) fields.put(value);
    out.write(seed.name, fields.bytes());
    ++offset;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_corpus DIRECTORY\n");
    return 2;
  }
  try {
    make_decode({argv[1], "decode"});
    make_roundtrip({argv[1], "roundtrip"});
    make_state({argv[1], "state"});
    make_kernels({argv[1], "kernels"});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_corpus: %s\n", error.what());
    return 1;
  }
  return 0;
}
