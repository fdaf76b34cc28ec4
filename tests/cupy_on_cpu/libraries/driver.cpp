// Stands in for libcuda.so.1, the driver: modules are shared libraries that compile_kernel.py made, launches are
// checked as a driver checks them, and run by fibers.cpp.
//
// Not there: PTX and cubins of NVIDIA's compilers, linking, cooperative launches, textures, contexts of one's own (a
// context is a device). Registers, occupancy and the time of a kernel mean nothing.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "launch.h"

using namespace standin;

namespace {
constexpr int DEFAULT_SHARED = 48 << 10, MAX_SHARED = 163 << 10;  // bytes a block, of compute capability 8.0
constexpr unsigned MAX_THREADS = 1024;
const std::string MAGIC = "CUDASTANDIN ";  // what compile_kernel.py writes before the path of a library

struct Module {
    void* handle;
    SimMode mode;
};
struct Function {
    Module* module;
    std::string name;
    void (*run)(void**);
    std::vector<int> sizes;  // of the arguments
    int max_dynamic = DEFAULT_SHARED;
};
Module* module_of(CUmodule m) { return reinterpret_cast<Module*>(m); }
Function* function_of(CUfunction f) { return reinterpret_cast<Function*>(f); }

// As on a GPU, every launch fails after a kernel that did.
bool broken = false;
void complain(const std::string& kernel, const std::string& why) {
    fprintf(stderr, "stand-in: kernel %s: %s\n", kernel.c_str(), why.c_str());
}

// A copy of a launch's arguments, each aligned as its type may ask.
class Arguments {
public:
    Arguments(const std::vector<int>& sizes, void** params) {
        for (size_t i = 0; i < sizes.size(); ++i) {
            const size_t size = size_t(sizes[i]);
            memory_.emplace_back(size + ALIGN);
            const uintptr_t start = reinterpret_cast<uintptr_t>(memory_.back().data());
            pointers_.push_back(reinterpret_cast<void*>((start + ALIGN - 1) & ~uintptr_t(ALIGN - 1)));
            memcpy(pointers_.back(), params[i], size);
            if (size >= sizeof(void*)) {  // a pointer, or an array of CuPy's, which begins with one
                const void* p;
                memcpy(&p, params[i], sizeof p);
                reachable_ = reachable_ && within_reach(p);
            }
        }
    }
    void** pointers() { return pointers_.data(); }
    bool reachable() const { return reachable_; }

private:
    static constexpr size_t ALIGN = 32;
    std::vector<std::vector<char>> memory_;
    std::vector<void*> pointers_;
    bool reachable_ = true;
};
CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(uintptr_t(0x1000 + device)); }
}  // namespace

extern "C" {
CUresult cuGetErrorName(CUresult error, const char** text) {
    static std::map<int, std::string>& names = *new std::map<int, std::string>{
        {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
    };
    std::string& name = names[error];
    if (name.empty()) name = "CUDA_ERROR_" + std::to_string(int(error));
    *text = name.c_str();
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* n) { return *n = n_devices(), CUDA_SUCCESS; }

// ---- contexts
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* c) { return *c = context_of(current_device()), CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext c) {
    if (c) current_device() = int(reinterpret_cast<uintptr_t>(c) - 0x1000);
    return CUDA_SUCCESS;
}
CUresult cuCtxCreate_v2(CUcontext* c, unsigned, CUdevice d) { return *c = context_of(d), CUDA_SUCCESS; }
CUresult cuCtxDestroy_v2(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* d) { return *d = current_device(), CUDA_SUCCESS; }
CUresult cuStreamGetCtx(CUstream, CUcontext* c) { return cuCtxGetCurrent(c); }

// ---- modules
CUresult cuModuleLoadData(CUmodule* out, const void* image) {
    std::string path = static_cast<const char*>(image);
    if (path.compare(0, MAGIC.size(), MAGIC)) {
        fprintf(stderr, "stand-in: cuModuleLoadData was given something that its NVRTC did not make\n");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    path = path.substr(MAGIC.size(), path.find('\n') - MAGIC.size());
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "stand-in: %s\n", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    count("module loads");
    *out = reinterpret_cast<CUmodule>(new Module{handle, SimMode(*static_cast<const int*>(dlsym(handle, "sim_mode")))});
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) {
    Module* m = module_of(module);
    const auto run = reinterpret_cast<void (*)(void**)>(dlsym(m->handle, (std::string("sim_run_") + name).c_str()));
    const auto sizes = reinterpret_cast<int (*)(int*)>(dlsym(m->handle, (std::string("sim_sizes_") + name).c_str()));
    if (!run || !sizes) return CUDA_ERROR_NOT_FOUND;
    Function* f = new Function{m, name, run, std::vector<int>(256)};
    f->sizes.resize(size_t(sizes(f->sizes.data())));
    *out = reinterpret_cast<CUfunction>(f);
    return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal_v2(CUdeviceptr* p, size_t* n, CUmodule module, const char* name) {
    void* found = dlsym(module_of(module)->handle, name);
    if (!found) return CUDA_ERROR_NOT_FOUND;
    if (p) *p = reinterpret_cast<CUdeviceptr>(found);
    if (n) *n = 0;
    return CUDA_SUCCESS;
}

// ---- launches
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
    Function* f = function_of(function);
    if (broken) return CUDA_ERROR_LAUNCH_FAILED;
    const bool good_grid = gx && gy && gz && gx <= 0x7fffffffu && gy <= 65535 && gz <= 65535;
    const bool good_block = bx && by && bz && bz <= 64 && uint64_t(bx) * by * bz <= MAX_THREADS;
    if (extra || !good_grid || !good_block || int64_t(shared) > f->max_dynamic) return CUDA_ERROR_INVALID_VALUE;
    count("kernel launches");
    count(("kernel " + f->name).c_str());
    const auto args = std::make_shared<Arguments>(f->sizes, params);
    if (!args->reachable()) {  // a GPU would say so later, and be of no use from then on
        complain(f->name, "an argument is memory of another device, which is no peer");
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    enqueue(stream, [=] {
        const SimIndex grid{gx, gy, gz}, block{bx, by, bz};
        const std::string failure = run_grid(f->module->mode, f->run, args->pointers(), grid, block, shared);
        if (failure.empty()) return;
        complain(f->name, failure);
        broken = true;
    });
    return broken ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = MAX_THREADS; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = capability(); break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function_of(function)->max_dynamic; break;
        default: *value = 0;
    }
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value > MAX_SHARED) return CUDA_ERROR_INVALID_VALUE;
        function_of(function)->max_dynamic = value;
    }
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction, int block, size_t) {
    return *n = 2048 / (block ? block : 1), CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction, CUoccupancyB2DSize, size_t, int limit) {
    *block = limit > 0 && limit < int(MAX_THREADS) ? limit : int(MAX_THREADS);
    *grid = 216;
    return CUDA_SUCCESS;
}

// ---- what CuPy looks up and we do not have
#define NOT_THERE(name, ...) \
    CUresult name(__VA_ARGS__) { return CUDA_ERROR_NOT_SUPPORTED; }
NOT_THERE(cuModuleLoad, CUmodule*, const char*)
NOT_THERE(cuLinkCreate_v2, unsigned, CUjit_option*, void**, CUlinkState*)
NOT_THERE(cuLinkAddData_v2, CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned, CUjit_option*, void**)
NOT_THERE(cuLinkAddFile_v2, CUlinkState, CUjitInputType, const char*, unsigned, CUjit_option*, void**)
NOT_THERE(cuLinkComplete, CUlinkState, void**, size_t*)
NOT_THERE(cuLinkDestroy, CUlinkState)
NOT_THERE(cuLaunchCooperativeKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
          CUstream, void**)
}
