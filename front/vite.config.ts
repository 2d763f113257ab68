// The build: one script and one stylesheet with fixed names, so that the committed files differ only where the sources do.
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: { include: ["tests/*.test.ts"] },
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    outDir: "../src/hermes_rl/viewer/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: { entryFileNames: "app.js", assetFileNames: "app[extname]", inlineDynamicImports: true },
    },
  },
});
