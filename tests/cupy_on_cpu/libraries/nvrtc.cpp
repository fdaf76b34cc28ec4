// Stands in for libnvrtc.so.13: g++ compiles, by way of compile_kernel.py. What is handed out as a cubin is the path of
// a shared library, which driver.cpp opens.
//
// Not there: headers given as text, LTO, PTX. The version is 13.0, whatever NVRTC would say.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "device.h"

namespace {
struct Program {
    std::string source, image, log;
    std::vector<std::string> expressions;
    std::vector<std::string> names;
};
enum { OK = 0, COMPILATION = 6, NOT_THERE = 9 };
std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
}  // namespace

extern "C" {
const char* nvrtcGetErrorString(int e) {
    return e == OK ? "NVRTC_SUCCESS" : e == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}
int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return OK;
}
int nvrtcCreateProgram(Program** out, const char* source, const char*, int headers, const char**, const char**) {
    if (headers) return NOT_THERE;
    *out = new Program{source, "", "", {}, {}};
    return OK;
}
int nvrtcDestroyProgram(Program** p) {
    delete *p;
    *p = nullptr;
    return OK;
}
int nvrtcAddNameExpression(Program* p, const char* text) {
    p->expressions.push_back(text);
    return OK;
}
int nvrtcGetLoweredName(Program* p, const char* text, const char** out) {
    for (size_t i = 0; i < p->expressions.size(); ++i)
        if (p->expressions[i] == text) {
            *out = p->names[i].c_str();
            return OK;
        }
    return NOT_THERE;
}
int nvrtcCompileProgram(Program* p, int n, const char** options) {
    p->names.clear();
    for (size_t i = 0; i < p->expressions.size(); ++i) p->names.push_back("expression_" + std::to_string(i));
    if (p->source.empty()) {  // CuPy looks at the result to tell compilers apart
        p->image = "// stand-in for NVRTC, by g++\n";
        return OK;
    }
    standin::count("nvrtc compilations");
    std::string base = std::filesystem::temp_directory_path() / "nvrtc-XXXXXX";
    if (!mkdtemp(base.data())) return COMPILATION;
    std::string flags, expressions;
    for (int i = 0; i < n; ++i) flags += std::string(options[i]) + "\n";
    for (auto& e : p->expressions) expressions += e + "\n";
    write(base + "/source.cu", p->source);
    write(base + "/options", flags);
    write(base + "/expressions", expressions);
    const pid_t child = fork();
    if (!child) {
        unsetenv("LD_PRELOAD");  // a sanitizer's, say
        execl(STANDIN_PYTHON, STANDIN_PYTHON, "-S", "-E", STANDIN_HOME "/compile_kernel.py", base.c_str(), nullptr);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    p->log = read(base + "/log");
    p->image = read(base + "/image");
    std::filesystem::remove_all(base);
    return status == 0 && !p->image.empty() ? OK : COMPILATION;
}
int nvrtcGetPTXSize(Program* p, size_t* n) {
    *n = p->image.size() + 1;
    return OK;
}
int nvrtcGetPTX(Program* p, char* out) {
    memcpy(out, p->image.c_str(), p->image.size() + 1);
    return OK;
}
int nvrtcGetCUBINSize(Program* p, size_t* n) { return nvrtcGetPTXSize(p, n); }
int nvrtcGetCUBIN(Program* p, char* out) { return nvrtcGetPTX(p, out); }
int nvrtcGetProgramLogSize(Program* p, size_t* n) {
    *n = p->log.size() + 1;
    return OK;
}
int nvrtcGetProgramLog(Program* p, char* out) {
    memcpy(out, p->log.c_str(), p->log.size() + 1);
    return OK;
}
int nvrtcGetNumSupportedArchs(int* n) {
    *n = 3;
    return OK;
}
int nvrtcGetSupportedArchs(int* a) {
    a[0] = 75;
    a[1] = 80;
    a[2] = 90;
    return OK;
}
int nvrtcGetLTOIRSize(Program*, size_t*) { return NOT_THERE; }
int nvrtcGetLTOIR(Program*, char*) { return NOT_THERE; }
}
