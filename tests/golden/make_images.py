#!/usr/bin/env python3
"""Image files of every kind that is decoded, and their pixels as Pillow decodes and resizes them.

    python3 tests/golden/make_images.py tests/golden/images

Needs Pillow and NumPy. Written with Pillow 13.0 (libjpeg-turbo 3.2). Beside every .jpg and .png its
pixels lie in NAME.rgb: u8 RGB rows, EXIF orientation applied. resize.txt lists crops and resizes of
base.png, "x y width height out_width out_height"; the pixels of line N are N.resized.
*.tar: WebDataset shards of three samples.
"""

import io
import pathlib
import sys
import tarfile

import numpy
from PIL import Image, ImageOps

WIDTH, HEIGHT = 75, 53


def picture():
    """Edges, gradients and noise: no wrong channel, row or column would go unseen."""
    y, x = numpy.mgrid[0:HEIGHT, 0:WIDTH].astype(numpy.float64)
    noise = numpy.random.default_rng(7).normal(0, 6, (HEIGHT, WIDTH, 3))
    pixels = numpy.stack([255 * x / WIDTH, 255 * y / HEIGHT, 255 * (x + y) / (WIDTH + HEIGHT)], 2)
    pixels[(x - 50) ** 2 + (y - 15) ** 2 < 100] = [230, 40, 20]
    pixels[(x > 8) & (x < 20) & (y > 30) & (y < 48)] = [10, 200, 90]
    return Image.fromarray(numpy.clip(pixels + noise, 0, 255).astype(numpy.uint8))


def save(folder, name, image, **options):
    """One file and the pixels that Pillow reads from it."""
    data = io.BytesIO()
    extension = name.rsplit(".", 1)[1]
    image.save(data, {"jpg": "JPEG", "png": "PNG"}[extension], **options)
    (folder / name).write_bytes(data.getvalue())
    expect(folder, name)


def expect(folder, name):
    with Image.open(folder / name) as opened:
        opened.load()
        pixels = ImageOps.exif_transpose(opened)
        if pixels.mode == "I;16":  # Pillow's conversion clips; the nearest 8-bit value is wanted
            grey = numpy.asarray(pixels).astype(numpy.float64)
            pixels = Image.fromarray(numpy.round(grey / 257).astype(numpy.uint8))
        (folder / (name + ".rgb")).write_bytes(pixels.convert("RGB").tobytes())


def make_files(folder):
    image = picture()
    save(folder, "base.png", image)
    save(folder, "plain.jpg", image, quality=90, subsampling=2)
    save(folder, "half.jpg", image, quality=90, subsampling=1)
    save(folder, "full.jpg", image, quality=95, subsampling=0)
    save(folder, "progressive.jpg", image, quality=85, progressive=True)
    save(folder, "grey.jpg", image.convert("L"), quality=90)
    save(folder, "cmyk.jpg", image.convert("CMYK"), quality=90)
    save(folder, "restart.jpg", image, quality=80, restart_marker_rows=1)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        save(folder, f"orientation{orientation}.jpg", image, quality=90, exif=exif)
    exif = Image.Exif()
    exif[0x0112] = 6
    save(folder, "orientation.png", image, exif=exif)
    save(folder, "grey.png", image.convert("L"))
    save(folder, "bit.png", image.convert("1"))
    save(folder, "palette.png", image.quantize(16))
    save(folder, "palette256.png", image.quantize(200), transparency=3)
    alpha = image.copy()
    alpha.putalpha(Image.linear_gradient("L").resize((WIDTH, HEIGHT)))
    save(folder, "alpha.png", alpha)
    save(folder, "grey_alpha.png", alpha.convert("LA"))
    deep = numpy.asarray(image.convert("L")).astype(numpy.uint16) * 257 + 77
    save(folder, "deep.png", Image.fromarray(deep.clip(0, 65535).astype(numpy.uint16)))


def make_resizes(folder):
    image = Image.open(folder / "base.png")
    cases = [(0, 0, 75, 53, 32, 32), (0, 0, 75, 53, 75, 53), (10, 5, 40, 30, 16, 24),
             (3, 7, 20, 11, 32, 32), (60, 40, 15, 13, 8, 8), (0, 0, 75, 53, 10, 7),
             (20, 0, 1, 53, 16, 16), (0, 20, 75, 1, 16, 16), (74, 52, 1, 1, 4, 4),
             (5, 5, 64, 40, 3, 2)]
    with open(folder / "resize.txt", "w", encoding="ascii") as out:
        for number, (x, y, width, height, out_width, out_height) in enumerate(cases):
            crop = image.crop((x, y, x + width, y + height))
            resized = crop.resize((out_width, out_height), Image.Resampling.BILINEAR)
            (folder / f"{number}.resized").write_bytes(resized.tobytes())
            print(x, y, width, height, out_width, out_height, file=out)
    # torchvision's Resize(short side) and CenterCrop(size): resize, then cut whole pixels.
    short, size = 40, 32
    width = int(short * image.width / image.height)
    whole = image.resize((width, short), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((short - size) / 2)
    centre = whole.crop((left, top, left + size, top + size))
    (folder / "centre40_32.resized").write_bytes(centre.tobytes())


def make_tars(folder):
    """The same WebDataset shard in the tar formats that Python writes."""
    for name, form in (("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT),
                       ("ustar", tarfile.USTAR_FORMAT)):
        with tarfile.open(folder / f"{name}.tar", "w", format=form) as tar:
            add(tar, "./", b"", tarfile.DIRTYPE)
            for number, key in enumerate(["a/0001", "deep/" * 18 + "0002", "long/" * 9 + "n" * 90]):
                image = (folder / "bit.png").read_bytes()
                add(tar, f"{key}.cls", f"{number * 7}\n".encode())
                add(tar, f"{key}.seg.json", b"{}")
                add(tar, f"{key}.PNG", image)


def add(tar, name, data, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.type = kind
    tar.addfile(info, io.BytesIO(data))


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    make_files(folder)
    make_resizes(folder)
    make_tars(folder)


if __name__ == "__main__":
    main()
