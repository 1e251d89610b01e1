# docker build -t prism . && docker run -p 8080:8080 -v $PWD/models:/models -v $PWD/data:/data prism
FROM python:3.11-slim
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt '.[serve,redis,postgresql]' \
 && useradd --create-home prism && mkdir -p /data && chown prism /data
USER prism
ENV NUMBA_CACHE_DIR=/data/kernels OMP_NUM_THREADS=1
VOLUME /data
EXPOSE 8080
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/ready', timeout=3)"]
# keys: docker run … prism serve-key /data/keys.json --tenant shop
ENTRYPOINT ["prism"]
CMD ["serve", "/models/current", "--host", "0.0.0.0", "--store", "/data/events.db", "--keys", "/data/keys.json"]
