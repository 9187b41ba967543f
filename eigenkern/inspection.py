"""What a fitted model looks at: its gradients."""

from .estimators.gradients import average_gradient_outer_product, gradient

__all__ = ["average_gradient_outer_product", "gradient"]
