# The guard with nothing but its production dependencies, as an unprivileged user.
#
#   docker build -t mcp-resume-guard .
#   docker run --rm -p 8808:8808 mcp-resume-guard http://host.docker.internal:3001/mcp

FROM node:22-bookworm-slim AS build
WORKDIR /app
COPY package.json package-lock.json ./
RUN npm ci --ignore-scripts --no-audit --no-fund
COPY tsconfig.json tsconfig.build.json ./
COPY scripts scripts
COPY src src
RUN npm run build

FROM node:22-bookworm-slim AS dependencies
WORKDIR /app
COPY package.json package-lock.json ./
# --ignore-scripts: "prepare" would build, and what it needs for that is left out here.
RUN npm ci --omit=dev --ignore-scripts --no-audit --no-fund

FROM node:22-bookworm-slim
WORKDIR /app
ENV NODE_ENV=production \
    MCP_RESUME_GUARD_LISTEN=0.0.0.0:8808
COPY --from=dependencies /app/node_modules node_modules
COPY --from=build /app/dist dist
COPY package.json LICENSE ./
COPY bin bin
COPY config config
USER node
EXPOSE 8808

# Asks the admin listener inside the container: at MCP_RESUME_GUARD_ADMIN or at its default. Whoever moves or switches
# it off by an option or a file sets the variable as well, or has no use for this check.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 \
    CMD ["node", "-e", "const admin = process.env.MCP_RESUME_GUARD_ADMIN || '127.0.0.1:8809'; if (admin === 'off') process.exit(0); fetch(`http://${admin}/livez`).then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1));"]

# The exec form, so that signals reach the guard itself, which drains on SIGTERM. No default command: without an
# upstream it says so and ends with exit code 2.
STOPSIGNAL SIGTERM
ENTRYPOINT ["node", "/app/bin/mcp-resume-guard.js"]
