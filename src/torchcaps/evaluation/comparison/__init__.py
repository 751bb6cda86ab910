"""Is one model, or one method, better than another?"""
