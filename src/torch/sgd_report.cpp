// How each tensor travels and why: what is dense or frozen must never be a surprise.
#include <fmt/format.h>

#include <algorithm>

#include "torch/describe.h"
#include "torch/sgd_impl.h"

namespace dgc {
namespace {

std::string type_name(torch::ScalarType type) {
  switch (type) {
    case torch::kHalf:
      return "half";
    case torch::kBFloat16:
      return "bfloat16";
    default:
      return "float";
  }
}

}  // namespace

SgdReport sgd::describe_tensors(std::span<const Parameter> parameters, const Buckets& plan,
                                const Exchange& exchange, const CompressOptions& compress) {
  SgdReport report;
  report.schedule = compress.schedule.describe();
  report.buckets = static_cast<int>(plan.size());
  const double ratio =
      compress.schedule.ratio_at(static_cast<std::int64_t>(exchange.state().step()));
  std::size_t next = 0;  // of the tensors that are exchanged
  for (const Parameter& parameter : parameters) {
    SgdReport::Tensor tensor{.name = parameter.name,
                             .aliases = parameter.aliases,
                             .shape = parameter.tensor.sizes().vec(),
                             .type = type_name(parameter.tensor.scalar_type()),
                             .mode = "frozen",
                             .why = parameter.why(),
                             .group = parameter.group,
                             .elements = static_cast<std::uint64_t>(parameter.tensor.numel())};
    if (!parameter.frozen) {
      const std::size_t t = next++;
      const bool dense = parameter.spec().dense;
      tensor.mode = dense ? "dense" : "sparse";
      tensor.k = dense ? tensor.elements : entries_at(ratio, tensor.elements);
      tensor.bytes = exchange.stats()[t].frame.bytes;
      for (std::size_t b = 0; b < plan.size(); ++b) {
        if (std::binary_search(plan[b].begin(), plan[b].end(), t)) {
          tensor.bucket = static_cast<int>(b);
        }
      }
      report.parameters += tensor.elements;
      if (!dense) report.sparse_parameters += tensor.elements;
    }
    report.tensors.push_back(std::move(tensor));
  }
  return report;
}

SgdReport Sgd::report() const {
  const Impl& my = *impl_;
  SgdReport report =
      sgd::describe_tensors(my.parameters, my.plan, *my.exchange, my.options.compress);
  const std::string reason = my.no_overlap();
  report.overlap = reason.empty() ? "on" : "off: " + reason;
  report.algorithm = name_of(my.options.algorithm());
  for (std::size_t g = 0; g < my.param_groups.size(); ++g) {
    const auto& options = static_cast<const SgdGroupOptions&>(my.param_groups[g].options());
    report.groups.push_back({options.lr(), options.weight_decay()});
  }
  return report;
}

std::string SgdReport::text() const {
  std::size_t width = 6;
  std::size_t shapes = 5;
  std::vector<std::string> names;
  for (const Tensor& tensor : tensors) {
    std::string name = tensor.name;
    for (const std::string& alias : tensor.aliases) name += " = " + alias;
    width = std::max(width, name.size());
    shapes = std::max(shapes, TensorSpec{"", tensor.shape}.shape_text().size());
    names.push_back(std::move(name));
  }
  std::string text = fmt::format("{:<{}}  {:<{}}  {:<8}  {:<6}  {:>6}  {:>11}  {:>11}  {:>9}  {}\n",
                                 "tensor", width, "shape", shapes, "type", "mode", "bucket",
                                 "elements", "k", "bytes", "why");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    text +=
        fmt::format("{:<{}}  {:<{}}  {:<8}  {:<6}  {:>6}  {:>11}  {:>11}  {:>9}  {}\n", names[i],
                    width, TensorSpec{"", tensor.shape}.shape_text(), shapes, tensor.type,
                    tensor.mode, tensor.bucket < 0 ? "-" : std::to_string(tensor.bucket),
                    tensor.elements, tensor.k, tensor.bytes, tensor.why);
  }
  text += fmt::format("{} parameters, {} of them sparse; {} bucket{}; algorithm {}; overlap {}\n",
                      parameters, sparse_parameters, buckets, buckets == 1 ? "" : "s", algorithm,
                      overlap);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    text +=
        fmt::format("group {}: lr {}, weight decay {}\n", g, groups[g].lr, groups[g].weight_decay);
  }
  text += "schedule:\n" + schedule;
  return text;
}

}  // namespace dgc
