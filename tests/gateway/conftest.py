from tests.support.product_loop import Factories, product_loop


def pytest_asyncio_loop_factories() -> Factories:
    """The loop that the product runs on."""
    return {"uvloop": product_loop}
