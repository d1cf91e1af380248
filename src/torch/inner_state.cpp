#include "torch/inner_state.h"

#include <fmt/format.h>
#include <torch/serialize.h>

#include <cstring>

#include "dgc/error.h"

namespace dgc::sgd {
namespace {

void load_inner(torch::optim::Optimizer& inner, const torch::Tensor& state) {
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(state.data_ptr()),
                    static_cast<std::size_t>(state.numel()));
  inner.load(archive);
}

}  // namespace

torch::Tensor inner_state(const torch::optim::Optimizer& inner) {
  torch::serialize::OutputArchive archive;
  inner.save(archive);
  std::string bytes;
  archive.save_to([&bytes](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  torch::Tensor state = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kByte);
  std::memcpy(state.data_ptr(), bytes.data(), bytes.size());
  return state;
}

InnerChange::InnerChange(torch::optim::Optimizer& inner, const torch::Tensor& state,
                         const std::string& subject)
    : inner_(inner), before_(inner_state(inner)) {
  try {
    load_inner(inner, state);
  } catch (const c10::Error& error) {
    take_back();
    throw Error(ErrorCode::state_mismatch, "load", subject,
                fmt::format("the inner optimizer does not take its state: {}",
                            error.what_without_backtrace()),
                "it was written with another optimizer; nothing was loaded");
  }
}

InnerChange::~InnerChange() {
  if (before_.defined()) take_back();
}

void InnerChange::take_back() noexcept {
  try {
    load_inner(inner_, before_);
  } catch (const std::exception&) {  // it was its own
  }
  before_.reset();
}

}  // namespace dgc::sgd
